// Asks for an API key: instead of a view that shows nothing without one, or in a dialog that the header opens at any time.

import { access, setKey } from "./api.js";
import { feed } from "./feed.js";
import { Icon } from "./icons.js";
import { tryKey } from "./models/catalog.js";
import { createStore, useStore } from "./store.js";
import { html, useEffect, useRef, useState } from "./vendor/preact.js";

const dialog = createStore({ isOpen: false, wanted: null, onOpened: null });

/** Open the dialog; `wanted`: a model that the key should open, then `onOpened` is called with its name in requests. */
export function askForKey(wanted = null, onOpened = null) {
  dialog.set({ isOpen: true, wanted, onOpened });
}

/** `id`: unique in the page; `refusal`: what the gateway said of the key in use. */
export function KeyForm({ id, title, tag = "h2", refusal = "", wanted = null, onDone, children }) {
  const [typed, setTyped] = useState("");
  const [problem, setProblem] = useState("");
  const [isSending, setSending] = useState(false);
  const field = useRef();
  const shown = problem || refusal;
  useEffect(() => field.current.focus(), [shown]);
  const send = async (event) => {
    event.preventDefault();
    setSending(true);
    const { problem, name } = await tryKey(typed.trim(), wanted);
    setSending(false);
    setProblem(problem);
    if (!problem) onDone?.(name);
  };
  const change = (event) => {
    setTyped(event.target.value);
    setProblem("");
  };
  return html`<form class="key-prompt" onSubmit=${send}>
    <${Icon} name="key" />
    <${tag} id=${`${id}-title`}>${title}<//>
    <p>It’s kept until you close this tab, and sent to this gateway only.</p>
    <label for=${id}>API key</label>
    <input
      id=${id}
      ref=${field}
      type="password"
      autocomplete="off"
      spellcheck="false"
      value=${typed}
      aria-invalid=${shown ? "true" : undefined}
      aria-describedby=${shown ? `${id}-refusal` : undefined}
      onInput=${change}
    />
    <p id=${`${id}-refusal`} class="problem" role="alert">${shown}</p>
    <button class="button primary" type="submit" disabled=${isSending || !typed.trim()}>Continue</button>
    ${children}
  </form>`;
}

/** In place of every view, where the gateway shows nothing without a key. */
export function KeyPrompt() {
  const refusal = useStore(feed, (state) => state.refusal);
  return html`<main id="main" tabindex="-1" class="view view-key">
    <${KeyForm} id="key" tag="h1" title="This gateway needs an API key" refusal=${refusal} />
  </main>`;
}

/** Opens the dialog from the header; a dot marks that a key is in use. */
export function KeyButton() {
  const hasKey = useStore(access, ({ key }) => key !== "");
  const label = hasKey ? "API key, in use" : "API key";
  return html`<button type="button" class="key-button" aria-label=${label} onClick=${() => askForKey()}>
    <${Icon} name="key" /><span>API key</span>${hasKey && html`<span class="dot" aria-hidden="true"></span>`}
  </button>`;
}

export function KeyDialog() {
  const { isOpen } = useStore(dialog);
  return isOpen ? html`<${OpenDialog} />` : null;
}

function OpenDialog() {
  const { wanted, onOpened } = dialog.get();
  const hasKey = useStore(access, ({ key }) => key !== "");
  const element = useRef();
  useEffect(() => element.current.showModal(), []);
  const closed = () => dialog.set({ isOpen: false, wanted: null, onOpened: null });
  const close = () => element.current.close(); // gives the focus back to the button that opened it
  const done = (name) => {
    close();
    onOpened?.(name);
  };
  const forget = () => {
    setKey("");
    close();
  };
  const title = wanted ? `${wanted.name} needs an API key` : hasKey ? "Change the API key" : "Enter an API key";
  return html`<dialog ref=${element} class="key-dialog" aria-labelledby="new-key-title" onClose=${closed}>
    <${KeyForm} id="new-key" title=${title} wanted=${wanted} onDone=${done}>
      ${hasKey && html`<button type="button" class="button quiet" onClick=${forget}>Forget key</button>`}
      <button type="button" class="button quiet" onClick=${close}>Cancel</button>
    <//>
  </dialog>`;
}
