// The bar above a conversation: its models, Compare, Parameters, and a menu with snippets and exports.
import { access } from "../api.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { copyText, outcomeOf, SHOWN_MS } from "../browser/clipboard.js";
import { parametersOf } from "../conversation/conversation.js";
import { download, fileNameOf, jsonOf, markdownOf, requestOf } from "../conversation/export.js";
import { Icon } from "../icons.js";
import { curlOf, pythonOf } from "../snippets.js";
import { ModelPicker } from "./model_picker.js";

export function Toolbar({ session, choices, locked, onList, onParameters }) {
  const { models, system, parameters } = session.conversation;
  const isCompared = models.length > 1;
  const choose = (column) => (id) => session.change({ models: models.map((old, at) => (at === column ? id : old)) });
  const compare = () => {
    const other = choices.find((choice) => choice.id !== models[0])?.id ?? models[0];
    session.change({ models: isCompared ? models.slice(0, 1) : [models[0], other] });
  };
  const count = Object.keys(parametersOf(parameters)).length + (system.trim() ? 1 : 0);
  return html`<div class="chat-toolbar" role="toolbar" aria-label="Conversation settings">
    <button
      type="button"
      class="chat-tool chat-open-list"
      aria-label="Conversations"
      title="Conversations"
      onClick=${onList}
    >
      <${Icon} name="menu" />
    </button>
    <div class="chat-models">
      ${models.map(
        (id, column) =>
          html`<${ModelPicker}
            key=${column}
            label=${isCompared ? `Model ${column + 1}` : "Model"}
            value=${id}
            choices=${choices}
            locked=${locked}
            onChange=${choose(column)}
          />`,
      )}
    </div>
    <button
      type="button"
      class="chat-tool"
      aria-pressed=${isCompared ? "true" : "false"}
      title="One prompt to two models"
      onClick=${compare}
    >
      <${Icon} name="compare" /><span>Compare</span>
    </button>
    <button type="button" class="chat-tool" onClick=${onParameters} title="System prompt and parameters">
      <${Icon} name="sliders" /><span>Parameters</span>${count > 0 && html`<b class="chat-count">${count}</b>`}
    </button>
    <${More} session=${session} />
  </div>`;
}

function More({ session }) {
  const menu = useRef(null);
  const [said, setSaid] = useState("");
  const { conversation } = session;
  const snippetOf = (write) => {
    const address = new URL("v1", location.href.split("#")[0]).href;
    return write(requestOf(conversation, 0), { address, hasKey: Boolean(access.get().key) });
  };
  useEffect(() => {
    const close = (event) =>
      menu.current && !menu.current.contains(event.target) && menu.current.removeAttribute("open");
    addEventListener("click", close);
    return () => removeEventListener("click", close);
  }, []);
  const act = (action) => async () => {
    setSaid((await action()) ?? "");
    menu.current.removeAttribute("open");
    menu.current.querySelector("summary").focus();
    setTimeout(() => setSaid(""), SHOWN_MS);
  };
  const copied = async (text) => outcomeOf(await copyText(text));
  const save = (suffix, text, type) => download(fileNameOf(conversation, suffix), text, type);
  const onKey = (event) => event.key === "Escape" && menu.current.open && (event.stopPropagation(), act(() => "")());
  const isEmpty = !conversation.turns.length;
  return html`<details class="chat-more" ref=${menu} onKeyDown=${onKey}>
    <summary class="chat-tool" aria-label="More" title="More"><${Icon} name="more" /></summary>
    <ul>
      <li><button type="button" onClick=${act(() => copied(snippetOf(curlOf)))}>Copy as curl</button></li>
      <li>
        <button type="button" onClick=${act(() => copied(snippetOf(pythonOf)))}>Copy as Python</button>
      </li>
      <li>
        <button
          type="button"
          disabled=${isEmpty}
          onClick=${act(() => save("md", markdownOf(conversation), "text/markdown"))}
        >
          Export as Markdown
        </button>
      </li>
      <li>
        <button
          type="button"
          disabled=${isEmpty}
          onClick=${act(() => save("json", jsonOf(conversation), "application/json"))}
        >
          Export as JSON
        </button>
      </li>
    </ul>
    <span class="chat-said" role="status">${said}</span>
  </details>`;
}
