// The card of one model: its state in words, its memory, its load, and the buttons that wake, stop and use it.

import { request } from "../api.js";
import { secondsSince, useTick } from "../clock.js";
import { feed, keyOf } from "../feed.js";
import { formatBytes, formatCount, formatRate, formatSeconds, NONE } from "../format.js";
import { Icon } from "../icons.js";
import { askForKey } from "../key_prompt.js";
import { catalog } from "../models/catalog.js";
import { stateOf, titled } from "../models/states.js";
import { useStore } from "../store.js";
import { html, useState } from "../vendor/preact.js";
import { Ledger } from "./ledger.js";
import { remedyOf, wordsOf } from "../models/reasons.js";
import { CodeExamples } from "./code_examples.js";
import { Sparkline } from "./sparkline.js";
import { WakeBar } from "./wake_bar.js";

const IDLE_TICK_MS = 5_000;

export function ModelCard({ model }) {
  const title = `model-${model.namespace}-${model.name}`;
  const { word, style } = stateOf(model.state);
  const isLocked = useStore(catalog, ({ locked }) => locked.has(keyOf(model)));
  return html`<article class="card model" aria-labelledby=${title}>
    <header class="model-head">
      <div class="model-name">
        <h2 id=${title}>${model.name}</h2>
        <p class="muted small">${namesOf(model)}</p>
      </div>
      <span class=${`pill ${style}`}>${titled(word)}</span>
    </header>
    <${Situation} model=${model} />
    <${Facts} model=${model} />
    ${model.ledger?.length > 0 && html`<${Ledger} rows=${model.ledger} gpu=${model.gpu} isHeld=${isUp(model)} />`}
    <${Actions} model=${model} isLocked=${isLocked} />
    <${CodeExamples} model=${model} isLocked=${isLocked} />
  </article>`;
}

const isUp = ({ state }) => state === "Ready" || state === "Waking";

function namesOf({ namespace, name, servedName }) {
  return servedName && servedName !== name ? `${namespace} · answers as ${servedName}` : namespace;
}

/** What the model is doing, as a sentence or a bar. */
function Situation({ model }) {
  switch (model.state) {
    case "Waking":
      return html`<${WakeBar} model=${model} />`;
    case "Failed":
      return html`<${Failure} model=${model} />`;
    case "Suspended":
      return html`<p class="situation">Suspended: requests don't wake it. Set <code>spec.suspend: false</code>.</p>`;
    case "Asleep":
      return html`<p class="situation">
        Asleep: it uses no GPU and no memory. The next request wakes it${model.lastColdStartSeconds > 0
          ? html`; last time that took <span class="number">${formatSeconds(model.lastColdStartSeconds)}</span>`
          : ""}.
      </p>`;
    default:
      return html`<${Activity} model=${model} />`;
  }
}

function Failure({ model }) {
  const message = model.message || "There is no message.";
  const saysRemedy = /[.:;]\s+[A-Z]/.test(message); // a second sentence
  const remedy = saysRemedy ? "" : remedyOf(model.reason);
  return html`<div class="failure">
    <p class="failure-reason"><${Icon} name="alert" /><strong>${wordsOf(model.reason) || "Failed"}</strong></p>
    <p>${titled(message)}</p>
    ${remedy && html`<p class="small"><strong>What to do:</strong> ${remedy}</p>`}
  </div>`;
}

function Activity({ model }) {
  const key = keyOf(model);
  const samples = useStore(feed, (state) => state.samples);
  const isBusy = model.running > 0 || model.waiting > 0;
  useTick(IDLE_TICK_MS, !isBusy);
  return html`<div class="activity">
    <p class="rate"><span class="number big">${formatRate(model.tokensPerSecond)}</span> tokens/s</p>
    <${Sparkline} samples=${samples} of=${key} />
    <p class="muted small">${isBusy ? busyText(model) : idleText(model)}</p>
  </div>`;
}

function busyText({ running, waiting }) {
  const parts = [`${formatCount(running)} running`];
  if (waiting > 0) parts.push(`${formatCount(waiting)} waiting`);
  return parts.join(", ");
}

function idleText({ idleSeconds, receivedMs }) {
  if (idleSeconds === null || idleSeconds === undefined) return "Idle";
  const seconds = Math.round(idleSeconds + secondsSince(receivedMs));
  return seconds < 5 ? "Idle" : `Idle for ${formatSeconds(seconds)}`;
}

function Facts({ model }) {
  const { ready = 0, desired = 0 } = model.replicas ?? {};
  const facts = [
    ["Runs on", hardwareOf(model)],
    ["Context", model.context ? `${formatCount(model.context)} tokens` : NONE],
    ["Replicas", desired > 0 ? `${ready} of ${desired} ready` : NONE],
    ["Queue", isUp(model) || model.waiting > 0 ? queueOf(model) : NONE],
  ].filter(([, value]) => value !== NONE);
  if (facts.length === 0) return null;
  return html`<dl class="facts">
    ${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd class="number">${value}</dd></div>`)}
  </dl>`;
}

function queueOf({ waiting }) {
  return waiting > 0 ? `${formatCount(waiting)} waiting` : "empty";
}

function hardwareOf({ gpu, gpus }) {
  if (gpu?.name) return `${gpu.name}${gpu.memoryBytes ? `, ${formatBytes(gpu.memoryBytes)}` : ""}`;
  if (gpus === 0) return "CPU";
  return gpus > 0 ? `${gpus} GPU${gpus > 1 ? "s" : ""}` : NONE;
}

/** Buttons; a refusal of the gateway is shown as it says it. */
function Actions({ model, isLocked }) {
  const [problem, setProblem] = useState("");
  const [isSending, setSending] = useState(false);
  const send = async (action) => {
    setProblem("");
    setSending(true);
    try {
      await request(`state/${action}/${model.namespace}/${model.name}`, { method: "POST" });
    } catch (error) {
      setProblem(error.status ? error.message : "The gateway can’t be reached. Try again in a moment.");
    } finally {
      setSending(false);
    }
  };
  const canWake = model.state === "Asleep";
  const canStop = model.canStop && isUp(model);
  const isUsable = model.state !== "Failed" && model.state !== "Suspended";
  return html`<div class="actions">
    ${canWake &&
    html`<button type="button" class="button primary" disabled=${isSending} onClick=${() => send("wake")}>
      <${Icon} name="power" />Wake<span class="visually-hidden"> ${model.name}</span>
    </button>`}
    ${isLocked &&
    html`<button type="button" class="button" onClick=${() => askForKey(model)}>
      <${Icon} name="key" />Enter API key<span class="visually-hidden"> for ${model.name}</span>
    </button>`}
    ${isUsable &&
    !isLocked &&
    html`<a class="button" href=${`#/chat?model=${encodeURIComponent(keyOf(model))}`}>
      <${Icon} name="chat" />Chat<span class="visually-hidden"> with ${model.name}</span>
    </a>`}
    ${canStop &&
    html`<button type="button" class="button quiet" disabled=${isSending} onClick=${() => send("stop")}>
      <${Icon} name="stop" />Stop<span class="visually-hidden"> ${model.name}</span>
    </button>`}
    <p class="problem" role="alert">${problem}</p>
  </div>`;
}
