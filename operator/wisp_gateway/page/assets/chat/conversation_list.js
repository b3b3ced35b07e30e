// Conversations kept in this browser: open, search, rename, delete.
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Icon } from "../icons.js";

const SEARCH_AFTER_MS = 200;

export function ConversationList({ session, onClose }) {
  const [query, setQuery] = useState("");
  const [matches, setMatches] = useState(null);
  useEffect(() => {
    if (!query.trim()) return setMatches(null);
    const timer = setTimeout(async () => setMatches(await session.search(query)), SEARCH_AFTER_MS);
    return () => clearTimeout(timer);
  }, [query, session.summaries]);
  const shown = session.summaries.filter(({ id }) => !matches || matches.has(id));
  const begin = () => {
    session.begin();
    onClose();
  };
  return html`<nav class="chat-list" aria-label="Conversations">
    <button type="button" class="chat-new" onClick=${begin}><${Icon} name="plus" />New conversation</button>
    <input
      type="search"
      aria-label="Search conversations"
      placeholder="Search"
      value=${query}
      onInput=${(event) => setQuery(event.target.value)}
    />
    <ul>
      ${shown.map((summary) => html`<${Entry} key=${summary.id} summary=${summary} session=${session} onClose=${onClose} />`)}
    </ul>
    ${shown.length === 0 && html`<p class="chat-note">${matches ? "No conversation matches." : "Conversations are kept in this browser only."}</p>`}
    <${Removed} session=${session} />
  </nav>`;
}

function Entry({ summary, session, onClose }) {
  const [isRenamed, setRenamed] = useState(false);
  const isOpen = summary.id === session.conversation.id;
  const open = () => {
    session.open(summary.id);
    onClose();
  };
  if (isRenamed)
    return html`<li><${Rename} summary=${summary} session=${session} onClose=${() => setRenamed(false)} /></li>`;
  return html`<li class=${isOpen ? "is-open" : ""}>
    <button
      type="button"
      class="chat-entry"
      aria-current=${isOpen ? "true" : undefined}
      onClick=${open}
      title=${summary.title}
    >
      ${summary.title}
    </button>
    <button
      type="button"
      class="chat-entry-action"
      aria-label=${`Rename ${summary.title}`}
      title="Rename"
      onClick=${() => setRenamed(true)}
    >
      <${Icon} name="edit" />
    </button>
    <button
      type="button"
      class="chat-entry-action"
      aria-label=${`Delete ${summary.title}`}
      title="Delete"
      onClick=${() => session.remove(summary.id)}
    >
      <${Icon} name="trash" />
    </button>
  </li>`;
}

function Rename({ summary, session, onClose }) {
  const field = useRef(null);
  useEffect(() => field.current.select(), []);
  const save = (event) => {
    event.preventDefault();
    if (!field.current) return; // saved already: the field's end takes its focus
    const title = field.current.value;
    onClose();
    session.rename(summary.id, title);
  };
  const onKey = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    onClose();
  };
  return html`<form class="chat-rename" onSubmit=${save}>
    <input
      ref=${field}
      aria-label="New title"
      defaultValue=${summary.title}
      maxlength="80"
      onKeyDown=${onKey}
      onBlur=${save}
    />
  </form>`;
}

function Removed({ session }) {
  if (!session.removed) return null;
  return html`<p class="chat-removed" role="status">
    Deleted.
    <button type="button" class="chat-small" onClick=${() => session.restore()}>Undo</button>
    <button type="button" class="chat-small" onClick=${() => session.forgetRemoved()}>Dismiss</button>
  </p>`;
}
