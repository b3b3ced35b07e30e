// Buttons of a model's card: wake, stop, and chat, or in its place the one that asks for the model's key.

import { request, sentenceOf } from "../api.js";
import { keyOf } from "../feed.js";
import { formatCount } from "../format.js";
import { Icon } from "../icons.js";
import { askForKey } from "../key_prompt.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";

/** Buttons that a card shows; a model's key is for requests to it, so whoever sees the card may wake and stop it. */
export function actionsOf({ state, canStop }, isLocked) {
  const names = [];
  if (state === "Asleep") names.push("wake");
  if (isLocked) names.push("key");
  else if (state !== "Failed" && state !== "Suspended") names.push("chat");
  if (canStop && (state === "Ready" || state === "Waking")) names.push("stop");
  return names;
}

/** Buttons; a refusal of the gateway is shown as it says it. */
export function ModelActions({ model, isLocked }) {
  const [problem, setProblem] = useState("");
  const [isSending, setSending] = useState(false);
  const [isAsking, setAsking] = useState(false);
  const send = async (action) => {
    setProblem("");
    setSending(true);
    try {
      await request(`state/${action}/${model.namespace}/${model.name}`, { method: "POST" });
    } catch (error) {
      setProblem(sentenceOf(error));
    } finally {
      setSending(false);
    }
  };
  const stop = () => (model.running > 0 ? setAsking(true) : send("stop"));
  const { name } = model;
  const actions = actionsOf(model, isLocked);
  const buttons = {
    key: { icon: "key", text: "Enter API key", of: `for ${name}`, onClick: () => askForKey(model) },
    wake: { icon: "power", text: "Wake", of: name, style: "primary", disabled: isSending, onClick: () => send("wake") },
    stop: { icon: "stop", text: "Stop", of: name, style: "quiet", disabled: isSending, onClick: stop },
  };
  return html`<div class="actions">
    ${actions.map((action) =>
      action === "chat"
        ? html`<${ChatLink} key=${action} model=${model} />`
        : html`<${Button} key=${action} ...${buttons[action]} />`,
    )}
    ${isLocked && html`<p class="note muted small">Chat and other requests need its API key${noteOf(actions)}.</p>`}
    <p class="problem" role="alert">${problem}</p>
    ${isAsking && html`<${StopDialog} model=${model} onStop=${() => send("stop")} onClose=${() => setAsking(false)} />`}
  </div>`;
}

/** What needs no key, on the card of a model whose key is missing. */
export function noteOf(actions) {
  if (actions.includes("wake")) return "; waking it here doesn’t";
  return actions.includes("stop") ? "; stopping it here doesn’t" : "";
}

function Button({ icon, text, of, style = "", ...attributes }) {
  return html`<button type="button" class=${`button ${style}`} ...${attributes}>
    <${Icon} name=${icon} />${text}<span class="visually-hidden"> ${of}</span>
  </button>`;
}

function ChatLink({ model }) {
  return html`<a class="button" href=${`#/chat?model=${encodeURIComponent(keyOf(model))}`}>
    <${Icon} name="chat" />Chat<span class="visually-hidden"> with ${model.name}</span>
  </a>`;
}

/** Asks before a model is stopped under requests. */
function StopDialog({ model, onStop, onClose }) {
  const element = useRef();
  const id = `stop-${model.namespace}-${model.name}`;
  const close = () => element.current.close(); // gives the focus back to the card's button
  const stop = () => {
    close();
    onStop();
  };
  useEffect(() => element.current.showModal(), []);
  return html`<dialog ref=${element} class="stop-dialog" aria-labelledby=${id} onClose=${onClose}>
    <h2 id=${id}>Stop ${model.name}?</h2>
    <p>${runningText(model.running)} A later request wakes it again.</p>
    <p class="dialog-buttons">
      <button type="button" class="button" onClick=${close}>Keep it running</button>
      <button type="button" class="button primary" onClick=${stop}>Stop it</button>
    </p>
  </dialog>`;
}

/** What becomes of the requests that run. */
export function runningText(running) {
  if (running === 0) return "Its last request has just ended.";
  const [requests, they] = running === 1 ? ["One request is", "It"] : [`${formatCount(running)} requests are`, "They"];
  return `${requests} running. ${they} may finish first, within the model’s spec.rollout.drainTimeout.`;
}
