// States of a model, as `/state` names them: the word for people and the style (`.pill`, `.chat-dot`) of each.

export const STATES = {
  Ready: { word: "ready", style: "ready" },
  Waking: { word: "waking", style: "waking" },
  Asleep: { word: "asleep", style: "asleep" },
  Failed: { word: "failed", style: "failed" },
  Suspended: { word: "suspended", style: "suspended" },
};

/** Word and style of a state; of one that is not known, its own name. */
export function stateOf(name) {
  return STATES[name] ?? { word: (name ?? "").toLowerCase(), style: "unknown" };
}

export const titled = (word) => word.charAt(0).toUpperCase() + word.slice(1);
