// Live.

import { html } from "../vendor/preact.js";

export default function LiveView() {
  return html`<h1>Live</h1>`;
}
