// The choice of a conversation's model, and the models to choose from: the names that the key opens, with their states.
import { stateOf } from "../models/states.js";
import { html } from "../vendor/preact.js";

/** Join `/v1/models` with the feed's models; entries are `{id, state, …}`. */
export function choicesOf(cards, feedModels) {
  return cards.map((card) => ({ ...card, ...(modelOfCard(card, feedModels ?? []) ?? {}), id: card.id }));
}

function modelOfCard(card, models) {
  const own = models.filter((model) => model.namespace === card.owned_by);
  const names = [(model) => `${model.namespace}/${model.name}`, (model) => model.servedName, (model) => model.name];
  for (const name of names) {
    const model = own.find((candidate) => name(candidate) === card.id);
    if (model) return model;
  }
  return null;
}

export function ModelPicker({ label, value, choices, onChange }) {
  const model = choices.find((choice) => choice.id === value);
  const isUnknown = value && !model;
  return html`<span class="chat-model">
    <span class=${`chat-dot is-${stateOf(model?.state).style}`} aria-hidden="true"></span>
    <select aria-label=${label} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${isUnknown && html`<option value=${value}>${value} (unavailable)</option>`}
      ${choices.length === 0 && !isUnknown && html`<option value="">No model</option>`}
      ${choices.map((choice) => html`<option key=${choice.id} value=${choice.id}>${textOf(choice)}</option>`)}
    </select>
  </span>`;
}

const textOf = ({ id, state }) => (state ? `${id} · ${stateOf(state).word}` : id);
