// A model's memory as one stacked bar: weights, KV cache, workspace, and what is free beside it.

import { formatBytes, formatBytesOf } from "../format.js";
import { html } from "../vendor/preact.js";

const LABELS = {
  weights: "Weights",
  kv: "KV cache",
  workspace: "Workspace",
  context: "CUDA context",
  free: "Free",
};

/** `isHeld`: whether the model holds it now; otherwise it is what it held when it last ran. */
export function Ledger({ rows, gpu, isHeld }) {
  const shown = rows.filter(({ bytes }) => bytes > 0);
  const total = shown.reduce((sum, { bytes }) => sum + bytes, 0);
  if (!total) return null;
  const used = shown.reduce((sum, { name, bytes }) => sum + (name === "free" ? 0 : bytes), 0);
  const label = `${gpu ? "GPU memory" : "Memory"}${isHeld ? "" : " when it last ran"}`;
  return html`<figure class="ledger">
    <figcaption><h3>${label}</h3><span class="number muted">${formatBytesOf(used, gpu?.memoryBytes || total)}</span></figcaption>
    <div class="stack" aria-hidden="true">
      ${shown.map(
        ({ name, bytes }) => html`<span
          key=${name}
          class=${`segment memory-${name}`}
          title=${`${LABELS[name] ?? name}: ${formatBytes(bytes)}`}
          style=${{ flexGrow: bytes / total }}
        ></span>`,
      )}
    </div>
    <ul class="legend">
      ${shown.map(
        ({ name, bytes }) => html`<li key=${name}>
          <span class=${`swatch memory-${name}`} aria-hidden="true"></span>${LABELS[name] ?? name}
          <span class="number">${formatBytes(bytes)}</span>
        </li>`,
      )}
    </ul>
  </figure>`;
}
