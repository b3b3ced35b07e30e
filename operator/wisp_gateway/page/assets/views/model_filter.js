// The choice of one model, or of all, that narrows what a view shows.

import { feed, keyOf } from "../feed.js";
import { useStore } from "../store.js";
import { html } from "../vendor/preact.js";

/** `others`: keys of models that are gone, and still in what is shown. */
export function ModelFilter({ value, onChange, others = [] }) {
  const models = useStore(feed, (state) => state.models);
  const keys = [...new Set([...(models ?? []).map(keyOf), ...others])].filter(Boolean).sort();
  return html`<select aria-label="Model" value=${value} onChange=${(event) => onChange(event.target.value)}>
    <option value="">All models</option>
    ${keys.map((key) => html`<option key=${key} value=${key}>${key}</option>`)}
  </select>`;
}
