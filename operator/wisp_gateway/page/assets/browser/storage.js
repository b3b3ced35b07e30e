// All that the page keeps in this browser's storage; conversations are apart, in IndexedDB (conversation/archive.js).

/** The API key, for this tab alone. */
export const keptKey = entry(() => sessionStorage, "wisp.key");

/** The message that is being written in a conversation. */
export const keptDraft = (conversationId) => entry(() => sessionStorage, `wisp.draft.${conversationId}`);

/** Models chosen last in the chat, as JSON. */
export const keptModels = entry(() => localStorage, "wisp.models");

/** "light" or "dark"; empty follows the system. theme.js reads it too, before any module runs. */
export const keptTheme = entry(() => localStorage, "wisp.theme");

/** A text under a name; a browser that keeps nothing has an empty one. */
function entry(storageOf, name) {
  return {
    get() {
      try {
        return storageOf().getItem(name) ?? "";
      } catch {
        return "";
      }
    },
    set(text) {
      try {
        if (text) storageOf().setItem(name, text);
        else storageOf().removeItem(name);
      } catch {
        // Kept as long as the page is open, by its caller.
      }
    },
  };
}
