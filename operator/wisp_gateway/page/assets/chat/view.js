// Chat with a model.

import { html } from "../vendor/preact.js";

export default function ChatView() {
  return html`<h1>Chat</h1>`;
}
