// The card of one model: its state in words, its memory and its load; its buttons are in model_actions.js.

import { useTick } from "../clock.js";
import { feed, keyOf } from "../feed.js";
import { formatBytes, formatCount, formatRate, formatSeconds, NONE } from "../format.js";
import { Icon } from "../icons.js";
import { catalog } from "../models/catalog.js";
import { lastWakeSecondsOf } from "../models/phases.js";
import { idleText, isOnCpu, sleepsInSeconds, stateOf, titled } from "../models/states.js";
import { useStore } from "../store.js";
import { html } from "../vendor/preact.js";
import { Ledger } from "./ledger.js";
import { remedyOf, wordsOf } from "../models/reasons.js";
import { CodeExamples } from "./code_examples.js";
import { ModelActions } from "./model_actions.js";
import { Sparkline } from "./sparkline.js";
import { WakeBar } from "./wake_bar.js";

const IDLE_TICK_MS = 5_000;
const COUNTDOWN_TICK_MS = 1_000;

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
    <${ModelActions} model=${model} isLocked=${isLocked} />
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
      return html`<${Sleep} model=${model} />`;
    default:
      return html`<${Activity} model=${model} />`;
  }
}

function Sleep({ model }) {
  const seconds = useStore(feed, ({ wakes }) => lastWakeSecondsOf(model, wakes));
  return html`<p class="situation">
    Asleep: it uses no GPU and no memory. The next request wakes it${seconds === null
      ? ""
      : html`; last time that took <span class="number">${formatSeconds(seconds)}</span>`}.
  </p>`;
}

function Failure({ model }) {
  const message = model.message || "There is no message.";
  const remedy = remedyOf(model.reason, message);
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
  return html`<div class="activity">
    <p class="rate"><span class="number big">${formatRate(model.tokensPerSecond)}</span> tokens/s</p>
    <${Sparkline} samples=${samples} of=${key} />
    <p class="muted small">${isBusy ? busyText(model) : html`<${Idle} model=${model} />`}</p>
  </div>`;
}

function Idle({ model }) {
  useTick(sleepsInSeconds(model) === null ? IDLE_TICK_MS : COUNTDOWN_TICK_MS, true);
  return idleText(model);
}

function busyText({ running, waiting }) {
  const parts = [`${formatCount(running)} running`];
  if (waiting > 0) parts.push(`${formatCount(waiting)} waiting`);
  return parts.join(", ");
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

function hardwareOf(model) {
  const { gpu, gpus } = model;
  if (gpu?.name) return `${gpu.name}${gpu.memoryBytes ? `, ${formatBytes(gpu.memoryBytes)}` : ""}`;
  if (isOnCpu(model)) return "CPU";
  return gpus > 0 ? `${gpus} GPU${gpus > 1 ? "s" : ""}` : NONE;
}
