// One answer: wake or wait, thinking, text, tool calls, what went wrong, figures, and what can be done with it.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { isRunning, isUsable } from "../conversation/answer.js";
import { onCodeClick } from "../browser/clipboard.js";
import { CopyButton } from "../copy_button.js";
import { formatCount, formatRate, formatSeconds } from "../format.js";
import { Icon } from "../icons.js";
import { askForKey } from "../key_prompt.js";
import { Markdown } from "../markdown/view.js";
import { useChanges } from "../store.js";
import { ToolCalls } from "./tool_calls.js";
import { Wake } from "./wake.js";

export function Answer({ answer, session, model, index, column, isLast, isAlone, isNear }) {
  const generation = session.generationOf(answer);
  useChanges(generation);
  const isLive = isRunning(answer);
  return html`<article class="chat-answer" aria-label=${`Answer of ${answer.model}`}>
    <header class="chat-author">${answer.model}</header>
    <div
      class="chat-answer-text"
      aria-live=${isLast ? "polite" : undefined}
      aria-busy=${isLive ? "true" : "false"}
      onClick=${onCodeClick}
    >
      ${answer.state === "waiting" && generation && html`<${Wake} generation=${generation} model=${model} name=${answer.model} />`}
      ${answer.reasoning && html`<${Thinking} answer=${answer} isLive=${isLive} />`}
      ${answer.content && html`<${Text} answer=${answer} isLive=${isLive} isNear=${isNear} />`}
      ${answer.calls.length > 0 && html`<${ToolCalls} answer=${answer} index=${index} session=${session} isOpen=${isLast && isAlone && !isLive} />`}
      <${Ending} answer=${answer} />
    </div>
    ${!isLive && html`<${Foot} answer=${answer} session=${session} index=${index} column=${column} isLast=${isLast} />`}
  </article>`;
}

function Text({ answer, isLive, isNear }) {
  if (!isNear) return html`<div class="md md-plain">${answer.content}</div>`;
  return html`<${Markdown} text=${answer.content} isComplete=${!isLive} />`;
}

function Thinking({ answer, isLive }) {
  const [isOpen, setOpen] = useState(false);
  const body = useRef(null);
  const isThinking = isLive && !answer.content && !answer.calls.length;
  useEffect(() => {
    if (body.current && isThinking) body.current.scrollTop = body.current.scrollHeight;
  });
  const seconds = answer.thinkingSeconds ? ` for ${formatSeconds(answer.thinkingSeconds)}` : "";
  const label = isThinking ? "Thinking…" : `Thought${seconds}`;
  return html`<details class="chat-thinking" open=${isOpen} onToggle=${(event) => setOpen(event.target.open)}>
    <summary>${label}</summary>
    <div class="chat-thinking-text" tabindex="0" ref=${body}>${isOpen ? answer.reasoning : ""}</div>
  </details>`;
}

/** Sentence on an answer that did not end by itself. */
function Ending({ answer }) {
  const { state, problem } = answer;
  if (problem) return html`<${Problem} problem=${problem} isWhole=${state === "failed"} />`;
  if (state === "stopped") return html`<p class="chat-ending">Stopped.</p>`;
  if (state === "interrupted")
    return html`<p class="chat-ending is-warning">
      Interrupted: the page was closed or lost its connection. The part that arrived is kept.
    </p>`;
  if (state === "done" && !isUsable(answer)) return html`<p class="chat-ending">The answer is empty.</p>`;
  if (answer.finish === "length")
    return html`<p class="chat-ending">Cut off at “Max tokens” or the end of the context.</p>`;
  return null;
}

function Problem({ problem, isWhole }) {
  return html`<div class=${`chat-problem ${isWhole ? "" : "is-warning"}`} role="alert">
    <p><strong>${problem.what}</strong></p>
    <p>${problem.remedy} ${problem.isOfModel && html`<a href="#/models">Open Models</a>`}</p>
    ${problem.isOfKey && html`<button type="button" class="chat-small is-primary" onClick=${() => askForKey()}>Enter API key</button>`}
    <p class="chat-where">${problem.where}</p>
  </div>`;
}

function Foot({ answer, session, index, column, isLast }) {
  const canGoOn =
    isLast && answer.content && !answer.calls.length && (answer.state !== "done" || answer.finish === "length");
  const isFailed = answer.state === "failed";
  return html`<footer class="chat-foot">
    <span class="chat-figures">${figuresOf(answer)}</span>
    <span class="chat-actions">
      ${answer.content && html`<${CopyButton} text=${answer.content} style="chat-small" />`}
      ${canGoOn && html`<button type="button" class="chat-small" onClick=${() => session.goOn(index, column)}>Continue</button>`}
      ${
        isLast &&
        html`<button
          type="button"
          class=${isFailed ? "chat-small is-primary" : "chat-small"}
          onClick=${() => session.regenerate(index, column)}
        >
          <${Icon} name="again" />${isFailed ? "Try again" : "Regenerate"}
        </button>`
      }
    </span>
  </footer>`;
}

function figuresOf(answer) {
  const { usage, tokensPerSecond, firstTokenSeconds, hasWoken } = answer;
  const figures = [];
  if (tokensPerSecond) figures.push([`${formatRate(tokensPerSecond)} tokens/s`, "Rate after the first token"]);
  if (firstTokenSeconds !== null) {
    figures.push([
      `first token ${formatSeconds(firstTokenSeconds)}${hasWoken ? ", woke the model" : ""}`,
      "From sending to the first token",
    ]);
  }
  if (usage) {
    figures.push([
      `${formatCount(usage.completion)} tokens`,
      usage.reasoning ? `${usage.reasoning} of them thinking` : "Tokens of the answer",
    ]);
    figures.push([
      `${formatCount(usage.prompt)} in the prompt, ${formatCount(usage.cached)} cached`,
      "Tokens of the prompt; the cached ones were not computed again",
    ]);
  }
  return figures.map(([text, title]) => html`<span title=${title}>${text}</span>`);
}
