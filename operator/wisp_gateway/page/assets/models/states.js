// States of a model, as `/state` names them: the word for people and the style (`.pill`, `.chat-dot`) of each.

import { secondsSince } from "../clock.js";
import { formatSeconds } from "../format.js";

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

/** How long no request has run, and when the model goes to sleep, where its document says after how long. */
export function idleText({ idleSeconds, idleAfterSeconds, receivedMs }) {
  if (typeof idleSeconds !== "number") return "No request is running";
  const seconds = Math.round(idleSeconds + secondsSince(receivedMs));
  const idle = seconds < 5 ? "No request is running" : `No request for ${formatSeconds(seconds)}`;
  if (typeof idleAfterSeconds !== "number") return idle;
  const remaining = Math.round(idleAfterSeconds) - seconds;
  return remaining > 0 ? `${idle}; sleeps in ${formatSeconds(remaining)}` : `${idle}; goes to sleep now`;
}
