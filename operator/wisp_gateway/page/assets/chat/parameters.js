// System prompt and parameters of a conversation; an empty field leaves the model's own default.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { NUMBERS } from "../conversation/conversation.js";

const EFFORTS = [
  ["", "Model’s default"],
  ["none", "Off"],
  ["low", "Low"],
  ["medium", "Medium"],
  ["high", "High"],
];

export function Parameters({ session, defaults, onClose }) {
  const dialog = useRef(null);
  const { system, parameters } = session.conversation;
  useEffect(() => dialog.current.showModal(), []);
  const set = (name) => (value) =>
    session.change({ parameters: { ...session.conversation.parameters, [name]: value } });
  const reset = () => session.change({ parameters: {}, system: "" });
  return html`<dialog
    ref=${dialog}
    class="chat-parameters"
    aria-labelledby="chat-parameters-title"
    onClose=${onClose}
    onClick=${(event) => event.target === dialog.current && dialog.current.close()}
  >
    <form method="dialog" class="chat-parameters-form">
      <header>
        <h2 id="chat-parameters-title">Parameters</h2>
        <button type="button" class="chat-small" onClick=${reset}>Reset</button
        ><button type="submit" class="chat-small is-primary">Done</button>
      </header>
      <label class="chat-field"
        >System prompt
        <textarea
          rows="4"
          value=${system}
          placeholder="You are a helpful assistant."
          onInput=${(event) => session.change({ system: event.target.value })}
        ></textarea>
      </label>
      <div class="chat-numbers">
        ${NUMBERS.map((number) => html`<${NumberField} key=${number.name} number=${number} value=${parameters[number.name]} given=${defaults?.[number.name]} onChange=${set(number.name)} />`)}
      </div>
      <label class="chat-field"
        >Stop <small>texts that end the answer, one per line</small>
        <textarea
          rows="2"
          value=${parameters.stop ?? ""}
          onInput=${(event) => set("stop")(event.target.value)}
        ></textarea>
      </label>
      <label class="chat-field"
        >Thinking
        <select
          value=${parameters.reasoning_effort ?? ""}
          onChange=${(event) => set("reasoning_effort")(event.target.value)}
        >
          ${EFFORTS.map(([value, label]) => html`<option value=${value}>${label}</option>`)}
        </select>
      </label>
      <${Tools} value=${parameters.tools ?? ""} onChange=${set("tools")} />
    </form>
  </dialog>`;
}

function NumberField({ number, value, given, onChange }) {
  const { name, label, min, max, step, fallback } = number;
  const isGiven = given !== null && given !== undefined && !(name === "top_k" && given <= 0); // 0 is off
  const standard = isGiven ? given : fallback;
  const onInput = (event) => event.target.validity.valid && onChange(event.target.value);
  return html`<label class="chat-field"
    >${label}
    <input
      type="number"
      name=${name}
      min=${min}
      max=${max}
      step=${Number.isInteger(step) ? step : "any"}
      value=${value ?? ""}
      placeholder=${standard}
      title=${`If empty: ${standard}${isGiven ? ", the model’s default" : ""}`}
      onInput=${onInput}
    />
  </label>`;
}

/** Tools as OpenAI's JSON; only what can be read is kept. */
function Tools({ value, onChange }) {
  const [problem, setProblem] = useState("");
  const onInput = (event) => {
    const text = event.target.value;
    const found = problemOfTools(text);
    setProblem(found);
    if (!found) onChange(text);
  };
  return html`<label class="chat-field"
    >Tools <small>a JSON list, like OpenAI’s “tools”</small>
    <textarea
      rows="3"
      spellcheck="false"
      class="is-code"
      defaultValue=${value}
      aria-invalid=${problem ? "true" : undefined}
      placeholder='[{"type": "function", "function": {"name": "…", "parameters": {…}}}]'
      onInput=${onInput}
    ></textarea>
    ${problem && html`<small class="chat-field-problem" role="alert">${problem}</small>`}
  </label>`;
}

function problemOfTools(text) {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Not a list: start with [.";
  } catch (error) {
    return `Not JSON yet: ${error.message}`;
  }
}
