// Models: a card each.

import { feed, keyOf } from "../feed.js";
import { useStore } from "../store.js";
import { html } from "../vendor/preact.js";

export default function ModelsView() {
  const models = useStore(feed, (state) => state.models);
  if (models === null) return html`<p class="muted">Connecting …</p>`;
  return html`<h1>Models</h1>
    <ul class="cards">
      ${models.map(
        (model) => html`<li key=${keyOf(model)} class="card">
          <h2>${model.name}</h2>
          <p>${model.state} ${model.message}</p>
        </li>`,
      )}
    </ul>`;
}
