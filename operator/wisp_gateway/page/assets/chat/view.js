// The Chat view: conversations with one model, or with two side by side.
import { access } from "../api.js";
import { loadStyles } from "../browser/styles.js";
import { openArchive } from "../conversation/archive.js";
import { ChatSession } from "../conversation/session.js";
import { feed, keyOf } from "../feed.js";
import { KeyForm } from "../key_prompt.js";
import { catalog, choicesOf } from "../models/catalog.js";
import { useChanges, useStore } from "../store.js";
import { html, useCallback, useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { Composer } from "./composer.js";
import { ConversationList } from "./conversation_list.js";
import { Log } from "./log.js";
import { Parameters } from "./parameters.js";
import { Toolbar } from "./toolbar.js";
import { Welcome } from "./welcome.js";

await Promise.all(["chat.css", "../markdown/markdown.css"].map((name) => loadStyles(new URL(name, import.meta.url))));
const session = new ChatSession(await openArchive());
session.refresh();

export default function ChatView({ params }) {
  useChanges(session);
  const [isListOpen, setListOpen] = useState(false);
  const [hasParameters, setParameters] = useState(false);
  const { choices, locked, isLoading, problem } = useChoices(params.get("model"));
  const { conversation } = session;
  const modelOf = useCallback((id) => choices.find((choice) => choice.id === id), [choices]);
  const isReady = conversation.models.every((id) => modelOf(id));
  const send = (text) => session.send(text);
  useEscape(() => session.stop());
  return html`<h1 class="visually-hidden">Chat</h1>
    <div class=${isListOpen ? "chat is-list-open" : "chat"}>
      <${ConversationList} session=${session} onClose=${() => setListOpen(false)} />
      <button
        type="button"
        class="chat-veil"
        aria-label="Close conversations"
        onClick=${() => setListOpen(false)}
      ></button>
      <section class="chat-main" aria-label="Conversation">
        <${Toolbar}
          session=${session}
          choices=${choices}
          locked=${locked}
          onList=${() => setListOpen(!isListOpen)}
          onParameters=${() => setParameters(true)}
        />
        ${session.problem && html`<p class="chat-notice" role="status">${session.problem}</p>`}
        ${contentOf(conversation, { modelOf, isLoading, problem, send })}
        <${Composer}
          id=${conversation.turns.length ? conversation.id : "new"}
          isRunning=${session.isRunning}
          isReady=${isReady}
          placeholder=${`Message ${conversation.models.filter(Boolean).join(" and ")}`}
          onSend=${send}
          onStop=${() => session.stop()}
        />
      </section>
      ${hasParameters && html`<${Parameters} session=${session} defaults=${modelOf(conversation.models[0])?.defaults} onClose=${() => setParameters(false)} />`}
    </div>`;
}

function contentOf(conversation, { modelOf, isLoading, problem, send }) {
  if (conversation.turns.length) {
    return html`<${Log} key=${conversation.id} session=${session} modelOf=${modelOf} />`;
  }
  if (problem?.isRefusedKey) {
    const refusal = access.get().key ? problem.message : "";
    return html`<div class="chat-welcome"><${KeyForm} id="chat-key" title="These models need an API key" refusal=${refusal} /></div>`;
  }
  const models = conversation.models.map(modelOf);
  return html`<${Welcome} models=${models} isLoading=${isLoading} problem=${problem?.message} onSend=${send} />`;
}

/** Models to choose from; the first is chosen where nothing was, or the one that the address names. */
function useChoices(wanted) {
  const models = useStore(feed, (state) => state.models);
  const { cards, locked, problem } = useStore(catalog);
  const choices = useMemo(() => choicesOf(cards ?? [], models ?? []), [cards, models]);
  const taken = useRef(null); // the model of the address that was chosen already
  useEffect(() => {
    if (!cards?.length) return;
    const linked = choices.find((choice) => [choice.id, choice.namespace && keyOf(choice)].includes(wanted));
    const [chosen, ...others] = session.conversation.models;
    if (linked && taken.current !== wanted) {
      taken.current = wanted;
      if (session.conversation.turns.length && chosen !== linked.id) session.begin();
      session.change({ models: [linked.id, ...others] });
    } else if (!chosen || (!session.conversation.turns.length && !cards.some(({ id }) => id === chosen))) {
      session.change({ models: [cards[0].id, ...others] });
    }
  }, [cards, wanted]);
  const isLoading = !cards && !problem;
  return { choices, locked: (models ?? []).filter((model) => locked.has(keyOf(model))), isLoading, problem };
}

/** Call `onEscape` at Esc, unless a dialog or a field of its own takes it. */
function useEscape(onEscape) {
  const current = useRef(onEscape);
  current.current = onEscape;
  useEffect(() => {
    const onKey = (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) current.current();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}
