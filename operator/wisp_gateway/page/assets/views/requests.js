// Requests.

import { html } from "../vendor/preact.js";

export default function RequestsView() {
  return html`<h1>Requests</h1>`;
}
