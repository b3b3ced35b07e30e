// Asks for the key that the gateway wants; it is kept until the tab is closed.

import { access, setKey } from "./api.js";
import { feed } from "./feed.js";
import { Icon } from "./icons.js";
import { useStore } from "./store.js";
import { html, useEffect, useRef, useState } from "./vendor/preact.js";

export function KeyPrompt() {
  const refusal = useStore(feed, (state) => state.refusal);
  const [typed, setTyped] = useState("");
  const field = useRef();
  useEffect(() => field.current.focus(), [refusal]);
  const send = (event) => {
    event.preventDefault();
    if (typed.trim()) setKey(typed.trim());
  };
  return html`<main id="main" tabindex="-1" class="view view-key">
    <form class="key-prompt" onSubmit=${send}>
      <${Icon} name="key" />
      <h1>This gateway needs an API key</h1>
      <p>It’s kept until you close this tab, and sent to this gateway only.</p>
      <label for="key">API key</label>
      <input
        id="key"
        ref=${field}
        type="password"
        autocomplete="off"
        spellcheck="false"
        value=${typed}
        aria-invalid=${refusal ? "true" : undefined}
        aria-describedby=${refusal ? "key-refusal" : undefined}
        onInput=${(event) => setTyped(event.target.value)}
      />
      <p id="key-refusal" class="problem" role="alert">${refusal}</p>
      <button class="button primary" type="submit" disabled=${!typed.trim()}>Continue</button>
    </form>
  </main>`;
}

/** Forgets the key; shown where one is in use. */
export function ForgetKey() {
  const hasKey = useStore(access, ({ key }) => key !== "");
  if (!hasKey) return null;
  return html`<button class="button quiet" type="button" onClick=${() => setKey("")}>Forget key</button>`;
}
