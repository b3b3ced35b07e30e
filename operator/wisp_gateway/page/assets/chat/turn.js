// One turn of a conversation: the user's text, or results of tools, and one answer a model.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { CopyButton } from "../copy_button.js";
import { Answer } from "./answer_view.js";
import { useNear } from "./nearness.js";
import { Icon } from "../icons.js";

export function Turn({ turn, index, session, modelOf, isLast, isNearEnd, whenNear }) {
  const [element, isNear] = useNear(isNearEnd, whenNear);
  return html`<li class="chat-turn" ref=${element}>
    ${turn.results ? html`<${Results} results=${turn.results} />` : html`<${Question} turn=${turn} index=${index} session=${session} />`}
    <div class=${turn.answers.length > 1 ? "chat-answers is-compared" : "chat-answers"}>
      ${turn.answers.map(
        (answer, column) =>
          html`<${Answer}
            key=${column}
            answer=${answer}
            session=${session}
            model=${modelOf(answer.model)}
            index=${index}
            column=${column}
            isLast=${isLast}
            isAlone=${turn.answers.length === 1}
            isNear=${isNear}
          />`,
      )}
    </div>
  </li>`;
}

function Results({ results }) {
  return html`<div class="chat-results">
    ${results.map(
      (result) =>
        html`<div role="group" class="chat-call" aria-label=${`Result of ${result.name}`}>
          <p class="chat-call-head">result of <code>${result.name}</code></p>
          <pre tabindex="0"><code>${result.content}</code></pre>
        </div>`,
    )}
  </div>`;
}

function Question({ turn, index, session }) {
  const [isEdited, setEdited] = useState(false);
  const edit = useRef(null);
  const close = () => {
    setEdited(false);
    setTimeout(() => edit.current?.focus());
  };
  if (isEdited)
    return html`<${Editor} text=${turn.text} onClose=${close} onSend=${(text) => session.edit(index, text)} />`;
  return html`<article class="chat-question" aria-label="You">
    <div class="chat-question-text">${turn.text}</div>
    <p class="chat-actions">
      <${CopyButton} text=${turn.text} style="chat-small" />
      <button type="button" class="chat-small" ref=${edit} onClick=${() => setEdited(true)}>
        <${Icon} name="edit" />Edit
      </button>
    </p>
  </article>`;
}

function Editor({ text, onClose, onSend }) {
  const field = useRef(null);
  useEffect(() => {
    field.current.focus();
    field.current.setSelectionRange(text.length, text.length);
  }, []);
  const send = (event) => {
    event?.preventDefault();
    const value = field.current.value.trim();
    if (!value) return;
    onSend(value);
    document.querySelector(".chat-composer textarea").focus();
  };
  const onKey = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      onClose();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      send(event);
    }
  };
  return html`<form class="chat-editor" onSubmit=${send}>
    <textarea
      ref=${field}
      aria-label="Edit message"
      rows=${Math.min(12, text.split("\n").length + 1)}
      defaultValue=${text}
      onKeyDown=${onKey}
    ></textarea>
    <p class="chat-actions">
      <span class="chat-note">Everything after this message is replaced.</span>
      <button type="button" class="chat-small" onClick=${onClose}>Cancel</button>
      <button type="submit" class="chat-small is-primary">Send</button>
    </p>
  </form>`;
}
