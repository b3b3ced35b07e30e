// The Models view: a card for each model, or an example for a gateway without any.

import { CopyButton } from "../copy_button.js";
import { feed, keyOf } from "../feed.js";
import { Icon } from "../icons.js";
import { STATES } from "../models/states.js";
import { useStore } from "../store.js";
import { html } from "../vendor/preact.js";
import { ModelCard } from "./model_card.js";

export default function ModelsView() {
  const models = useStore(feed, (state) => state.models);
  return html`<div class="view-head">
      <h1>Models</h1>
      <p class="muted" role="status">${models?.length ? summaryOf(models) : ""}</p>
    </div>
    ${contentOf(models)}`;
}

function contentOf(models) {
  if (models === null) return html`<p class="muted">Loading…</p>`;
  if (models.length === 0) return html`<${NoModel} />`;
  return html`<ul class="cards">
    ${models.map((model) => html`<li key=${keyOf(model)}><${ModelCard} model=${model} /></li>`)}
  </ul>`;
}

function summaryOf(models) {
  const counts = Object.entries(STATES)
    .map(([state, { word }]) => [models.filter((model) => model.state === state).length, word])
    .filter(([count]) => count > 0);
  return counts.map(([count, word]) => `${count} ${word}`).join(", ");
}

const EXAMPLE = `apiVersion: wisp.dev/v1alpha1
kind: InferenceModel
metadata:
  name: smollm2
spec:
  model:
    uri: hf://HuggingFaceTB/SmolLM2-135M-Instruct
  gpu:
    count: 0`;

function NoModel() {
  return html`<section class="empty">
    <${Icon} name="models" />
    <h2>No models yet</h2>
    <p>Save this as <code>smollm2.yaml</code>: a small model that runs without a GPU.</p>
    <div class="example">
      <pre tabindex="0" aria-label="smollm2.yaml"><code>${EXAMPLE}</code></pre>
      <${CopyButton} text=${EXAMPLE} label="Copy smollm2.yaml" />
    </div>
    <p>Then <code>kubectl apply -f smollm2.yaml</code> on a cluster, or <code>wisp up smollm2.yaml</code> on this
    machine. It will appear here.</p>
  </section>`;
}
