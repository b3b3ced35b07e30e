// Markdown to safe HTML, block by block: a growing text is parsed again from its last block on only.
import { Marked } from "../vendor/marked.js";
import DOMPurify from "../vendor/dompurify.js";

const TAGS = [
  "a",
  "p",
  "br",
  "hr",
  "em",
  "strong",
  "del",
  "code",
  "pre",
  "blockquote",
  "ul",
  "ol",
  "li",
  "h2",
  "sub",
  "sup",
  "table",
  "thead",
  "tbody",
  "tr",
  "th",
  "td",
  "div",
  "span",
  "button",
  "kbd",
  "u",
  "mark",
];
const ATTRIBUTES = [
  "href",
  "title",
  "class",
  "start",
  "align",
  "type",
  "tabindex",
  "role",
  "aria-label",
  "rel",
  "target",
];
const PLAIN_TAG = /^<\/?(?:br|sub|sup|kbd|u|mark)\s*\/?>$/i;
const LINK = /^(?:https?:|mailto:)/i;

const escape = (text) => text.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);

const renderer = {
  html({ text, block }) {
    if (PLAIN_TAG.test(text.trim())) return text;
    return block ? `<p class="md-source">${escape(text.trimEnd())}</p>` : escape(text);
  },
  image({ href, text }) {
    return anchor(href, escape(text ? `image: ${text}` : href));
  },
  link({ href, tokens }) {
    return anchor(href, this.parser.parseInline(tokens));
  },
  heading({ tokens, depth }) {
    return `<h2 class="md-h${depth}">${this.parser.parseInline(tokens)}</h2>`;
  },
  checkbox({ checked }) {
    return checked ? "☑ " : "☐ ";
  },
  code({ text, lang }) {
    return codeBlock(escape(languageOf(lang)), escape(text));
  },
};

function anchor(href, inner) {
  if (!LINK.test(href)) return `${inner} (${escape(href)})`;
  return `<a href="${escape(href)}" target="_blank" rel="noopener noreferrer">${inner}</a>`;
}

function codeBlock(language, code) {
  const head = `<span>${language || "text"}</span><button type="button" class="copy-code">Copy</button>`;
  return `<div class="code"><div class="code-head">${head}</div><pre tabindex="0"><code>${code}</code></pre></div>`;
}

const marked = new Marked({ gfm: true, renderer });

function languageOf(info) {
  return (info ?? "").trim().split(/\s/)[0].slice(0, 40);
}

/** Safe HTML of a Markdown text. */
function safeHtml(tokens) {
  const html = DOMPurify.sanitize(marked.parser(tokens), {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOW_DATA_ATTR: false,
  });
  return html
    .replaceAll("<table>", '<div class="md-table" tabindex="0"><table>')
    .replaceAll("</table>", "</table></div>");
}

/**
 * Blocks of a growing text, `{key, code, language}` or `{key, html}`.
 *
 * A block before the last is kept as it is, the same object, so that what shows it need not change.
 */
export class MarkdownBlocks {
  #blocks = [];
  #text = "";
  #tail = 0; // where the last block begins

  /** Return the blocks of `text`; `isComplete` parses all of it once more, for references that came late. */
  update(text, isComplete) {
    text = text.replace(/\r\n?/g, "\n");
    if (!text.startsWith(this.#text) || (isComplete && /^ {0,3}\[[^\]]+\]:/m.test(text))) this.#reset();
    this.#text = text;
    const tokens = marked.lexer(text.slice(this.#tail));
    const links = tokens.links;
    const last = tokens.findLastIndex((token) => token.type !== "space");
    const done = this.#blocks.filter((block) => block.isDone);
    tokens.forEach((token, index) => {
      if (index < last) this.#tail += token.raw.length;
      if (token.type !== "space" && token.type !== "def")
        done.push(this.#block(token, links, done.length, index < last));
    });
    this.#blocks = done;
    return done;
  }

  #block(token, links, key, isDone) {
    if (token.type === "code") return { key, isDone, code: token.text, language: languageOf(token.lang) };
    return { key, isDone, html: safeHtml(Object.assign([token], { links })) };
  }

  #reset() {
    this.#blocks = [];
    this.#tail = 0;
  }
}
