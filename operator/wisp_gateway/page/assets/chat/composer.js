// The field for a message: Enter sends, Shift+Enter begins a line, Esc stops the answer.
import { keptDraft } from "../browser/storage.js";
import { Icon } from "../icons.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";

export function Composer({ id, isRunning, isReady, placeholder, onSend, onStop }) {
  const [text, setText] = useState(() => keptDraft(id).get());
  const field = useRef(null);
  useEffect(() => {
    setText(keptDraft(id).get());
    if (matchMedia("(pointer: fine)").matches) field.current.focus();
  }, [id]);
  useLayoutEffect(() => {
    field.current.style.height = "auto";
    field.current.style.height = `${Math.min(field.current.scrollHeight + 2, innerHeight * 0.4)}px`;
  }, [text]);
  const change = (value) => {
    setText(value);
    keptDraft(id).set(value);
  };
  const send = (event) => {
    event.preventDefault();
    if (isRunning || !isReady || !text.trim()) return;
    change("");
    onSend(text.trim());
    field.current.focus();
  };
  const onKey = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  return html`<form class="chat-composer" onSubmit=${send}>
    <textarea
      ref=${field}
      rows="1"
      aria-label="Message"
      placeholder=${placeholder}
      value=${text}
      onInput=${(event) => change(event.target.value)}
      onKeyDown=${onKey}
    ></textarea>
    ${
      isRunning
        ? html`<button type="button" class="chat-send" onClick=${onStop} aria-label="Stop" title="Stop (Esc)">
            <${Icon} name="stop" />
          </button>`
        : html`<button
            type="submit"
            class="chat-send"
            aria-label="Send"
            title="Send (Enter)"
            disabled=${!isReady || !text.trim()}
          >
            <${Icon} name="send" />
          </button>`
    }
  </form>`;
}
