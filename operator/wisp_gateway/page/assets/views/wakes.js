// Wakes.

import { html } from "../vendor/preact.js";

export default function WakesView() {
  return html`<h1>Wakes</h1>`;
}
