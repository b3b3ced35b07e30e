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

/** Whether a model runs on the CPU: by its spec, or by a pod's memory that names no GPU (`wisp up --device cpu`). */
export const isOnCpu = ({ gpus, gpu, ledger }) => gpus === 0 || (!gpu && ledger?.length > 0);

export const titled = (word) => word.charAt(0).toUpperCase() + word.slice(1);

const MAX_LATE_S = 3;

/** How long no request has run, and when the model goes to sleep, if that is known. */
export function idleText(model) {
  if (typeof model.idleSeconds !== "number") return "No request is running";
  const seconds = idleSecondsOf(model);
  const idle = seconds < 5 ? "No request is running" : `No request for ${formatSeconds(seconds)}`;
  const remaining = sleepsInSeconds(model);
  if (remaining === null) return idle;
  return remaining > 0 ? `${idle}; sleeps in ${formatSeconds(remaining)}` : `${idle}; goes to sleep now`;
}

/**
 * Seconds until an idle model goes to sleep. Null where no one gateway knows (`canStop`: `wisp up` has one), where it
 * never does, and once it is late: something that is not in its document keeps it up.
 */
export function sleepsInSeconds(model) {
  const { idleSeconds, idleAfterSeconds, canStop } = model;
  if (!canStop || typeof idleSeconds !== "number" || typeof idleAfterSeconds !== "number") return null;
  const remaining = Math.round(idleAfterSeconds) - idleSecondsOf(model);
  return remaining >= -MAX_LATE_S ? remaining : null;
}

function idleSecondsOf({ idleSeconds, receivedMs }) {
  return Math.round(idleSeconds + secondsSince(receivedMs));
}
