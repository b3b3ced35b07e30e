// Models that a conversation can choose: the names that the key opens, with their states from the feed.
import { html } from "../vendor/preact.js";

const STATES = { Ready: "ready", Asleep: "asleep", Waking: "waking", Failed: "failed", Suspended: "suspended" };

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

export function stateText(state) {
  return STATES[state] ?? (state ?? "").toLowerCase();
}

export function ModelSelect({ label, value, choices, onChange }) {
  const model = choices.find((choice) => choice.id === value);
  const isUnknown = value && !model;
  return html`<span class="chat-model">
    <span class=${`chat-dot is-${stateText(model?.state) || "unknown"}`} aria-hidden="true"></span>
    <select aria-label=${label} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${isUnknown && html`<option value=${value}>${value} (not there)</option>`}
      ${choices.length === 0 && !isUnknown && html`<option value="">No model</option>`}
      ${choices.map((choice) => html`<option key=${choice.id} value=${choice.id}>${choice.id} · ${stateText(choice.state)}</option>`)}
    </select>
  </span>`;
}
