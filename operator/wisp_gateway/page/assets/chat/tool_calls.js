// Tool calls as blocks; while they are open, their results can be typed and sent back.
import { html, useState } from "../vendor/preact.js";

export function ToolCalls({ answer, index, session, isOpen }) {
  const [results, setResults] = useState({});
  const canSend = answer.calls.every((call) => results[call.id]);
  const send = (event) => {
    event.preventDefault();
    session.send(
      "",
      answer.calls.map(({ id, name }) => ({ id, name, content: results[id] })),
    );
  };
  return html`<form class="chat-calls" onSubmit=${send}>
    ${answer.calls.map(
      (call, number) =>
        html`<section class="chat-call" key=${number} aria-label=${labelOf(answer, index, number)}>
          <p class="chat-call-head">calls <code>${call.name}</code></p>
          <pre tabindex="0"><code>${indented(call.arguments)}</code></pre>
          ${
            isOpen &&
            html`<label
              >Result of ${call.name}
              <textarea
                rows="2"
                value=${results[call.id] ?? ""}
                onInput=${(event) => setResults({ ...results, [call.id]: event.target.value })}
              ></textarea>
            </label>`
          }
        </section>`,
    )}
    ${isOpen && html`<button type="submit" class="chat-small is-primary" disabled=${!canSend}>Send results</button>`}
  </form>`;
}

/** Name of a call that no other of the conversation has: it is a landmark. */
function labelOf({ calls, model }, index, number) {
  const place = calls.length > 1 ? `turn ${index + 1}, call ${number + 1}` : `turn ${index + 1}`;
  return `Call of ${calls[number].name} by ${model}, ${place}`;
}

/** Arguments as indented JSON, or as they are while they are still being written. */
function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
