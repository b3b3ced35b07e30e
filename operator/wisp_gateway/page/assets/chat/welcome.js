// An empty conversation: the model's state, what a first message does, and openings to try.
import { formatSeconds } from "../format.js";
import { stateOf } from "../models/states.js";
import { html } from "../vendor/preact.js";

const OPENINGS = [
  "Explain in two sentences why the sky is blue.",
  "Write a Python function that returns the n-th prime number.",
  "Make a table of three rivers: name, length, where it ends.",
];

export function Welcome({ models, isLoading, problem, onSend }) {
  const present = models.filter(Boolean);
  const isEmpty = !present.length && !problem && !isLoading;
  return html`<div class="chat-welcome">
    <h2>${headingOf(present, isLoading)}</h2>
    ${present.map((model) => html`<p key=${model.id}>${present.length > 1 && html`<strong>${model.id}</strong>`} ${sentenceOf(model)}</p>`)}
    ${problem && html`<p class="chat-problem" role="alert">${problem}</p>`}
    ${isEmpty && html`<p>Serve one with <code>wisp up model.yaml</code>, or choose another above.</p>`}
    ${
      present.length > 0 &&
      html`<ul class="chat-openings">
        ${OPENINGS.map(
          (text) =>
            html`<li key=${text}>
              <button type="button" onClick=${() => onSend(text)}>${text}</button>
            </li>`,
        )}
      </ul>`
    }
  </div>`;
}

function headingOf(present, isLoading) {
  if (present.length > 1) return "Ask both";
  if (present.length === 1) return `Ask ${present[0].id}`;
  return isLoading ? "Loading…" : "No models available";
}

function sentenceOf(model) {
  const last = model.lastColdStartSeconds ? ` The last wake took ${formatSeconds(model.lastColdStartSeconds)}.` : "";
  switch (model.state) {
    case "Ready":
      return "It’s ready.";
    case "Asleep":
      return `It’s asleep and uses no memory. Your first message wakes it.${last}`;
    case "Waking":
      return "It’s waking up. A message waits until it can answer.";
    default:
      return `It’s ${stateOf(model.state).word}. ${model.message ?? ""}`;
  }
}
