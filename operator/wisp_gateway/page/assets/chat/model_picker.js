// The choice of a conversation's model, with the state of each; one that needs another key asks for it.
import { keyOf } from "../feed.js";
import { askForKey } from "../key_prompt.js";
import { stateOf } from "../models/states.js";
import { html } from "../vendor/preact.js";

/** `choices`: models that the key opens; `locked`: the feed's other models. */
export function ModelPicker({ label, value, choices, locked, onChange }) {
  const model = choices.find((choice) => choice.id === value);
  const isUnknown = value && !model;
  const choose = (event) => {
    const chosen = event.target.value;
    const wanted = locked.find((model) => lockedValue(model) === chosen);
    if (!wanted) return onChange(chosen);
    event.target.value = value;
    return askForKey(wanted, onChange);
  };
  return html`<span class="chat-model">
    <span class=${`chat-dot is-${stateOf(model?.state).style}`} aria-hidden="true"></span>
    <select aria-label=${label} value=${value} onChange=${choose}>
      ${isUnknown && html`<option value=${value}>${value} (unavailable)</option>`}
      ${choices.length === 0 && !isUnknown && html`<option value="">No model</option>`}
      ${choices.map((choice) => html`<option key=${choice.id} value=${choice.id}>${textOf(choice)}</option>`)}
      ${locked.map((model) => html`<option key=${lockedValue(model)} value=${lockedValue(model)}>${model.name} · needs an API key</option>`)}
    </select>
  </span>`;
}

const lockedValue = (model) => `locked ${keyOf(model)}`;
const textOf = ({ id, state }) => (state ? `${id} · ${stateOf(state).word}` : id);
