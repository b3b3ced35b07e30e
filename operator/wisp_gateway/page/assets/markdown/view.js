// A Markdown text as elements; blocks that did not change are not touched.
import { html, useMemo } from "../vendor/preact.js";
import { MarkdownBlocks } from "./blocks.js";

const shown = new WeakMap(); // elements by their blocks

export function Markdown({ text, isComplete }) {
  const blocks = useMemo(() => new MarkdownBlocks(), []);
  const elements = useMemo(() => blocks.update(text, isComplete).map(elementOf), [text, isComplete]);
  return html`<div class="md">${elements}</div>`;
}

function elementOf(block) {
  if (!shown.has(block)) shown.set(block, block.html === undefined ? codeOf(block) : blockOf(block));
  return shown.get(block);
}

function blockOf(block) {
  return html`<div key=${block.key} class="md-block" dangerouslySetInnerHTML=${{ __html: block.html }}></div>`;
}

function codeOf(block) {
  return html`<div key=${`code${block.key}`} class="md-block code">
    <div class="code-head">
      <span>${block.language || "text"}</span><button type="button" class="copy-code">Copy</button>
    </div>
    <pre tabindex="0"><code>${block.code}</code></pre>
  </div>`;
}
