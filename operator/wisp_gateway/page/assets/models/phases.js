// Phases of a wake: their order, names, explanations and colours (`phase-NAME` in style.css), and how far a wake is.

import { secondsSince } from "../clock.js";
import { keyOf } from "../feed.js";

export const PHASES = [
  { name: "schedule", label: "Schedule", doing: "Scheduling", about: "a machine is chosen, and the pod’s process begins" },
  { name: "import", label: "Start", doing: "Starting the runtime", about: "the runtime’s code is loaded" },
  { name: "pull", label: "Fetch", doing: "Fetching weights", about: "files that the cache lacks are downloaded" },
  { name: "weights", label: "Weights", doing: "Loading weights", about: "weights go from disk into memory" },
  {
    name: "kernels",
    label: "Kernels",
    doing: "Preparing kernels",
    about: "the KV cache is reserved; on a GPU kernels are loaded",
  },
  { name: "firstToken", label: "Warm-up", doing: "Warming up", about: "one real step computes a token; then the model is ready" },
  {
    name: "answer",
    label: "First answer",
    doing: "Starting the first answer",
    about: "from ready to the first token of the request that waited, not part of the wake’s time",
  },
];

const byName = new Map(PHASES.map((phase) => [phase.name, phase]));
const HEARTBEAT = /^(.*?)\s*(\d+)\s*%$/;

export function phaseOf(name) {
  return byName.get(name) ?? { name, label: name, doing: name };
}

/**
 * How far a model's wake is: `phases` so far as `{ name, progress, seconds }`, `current` (the name of the one that
 * runs, empty before the first) and its `progress` (0 to 1, or null).
 *
 * `heartbeat`: phase that a held request was told ("weights 62 %"), for a model that the feed does not show.
 */
export function wakeOf(model, heartbeat = "") {
  const phases = model?.startPhases ?? [];
  const [, beaten, percent] = HEARTBEAT.exec(heartbeat) ?? [null, heartbeat, null];
  const current = model?.phase || phases.at(-1)?.name || beaten;
  const known = phases.find(({ name }) => name === current);
  const beat = percent === null || beaten !== current ? null : Number(percent) / 100;
  return { phases, current, progress: known?.progress ?? model?.progress ?? beat };
}

/** Seconds of a model's wake so far: those of its row among `wakes`, or else of the phases that its pods reported. */
export function wakeSecondsOf(model, wakes) {
  const row = lastWakeOf(model, wakes, "running");
  if (row) return row.seconds + secondsSince(row.receivedMs);
  const known = (model.startPhases ?? []).reduce((sum, { seconds }) => sum + (seconds ?? 0), 0);
  return known + secondsSince(model.receivedMs);
}

/** Seconds that the last wake of a model took, by its row among `wakes` where its document has none; null: unknown. */
export function lastWakeSecondsOf(model, wakes) {
  return model.lastColdStartSeconds || lastWakeOf(model, wakes, "ready")?.seconds || null;
}

function lastWakeOf(model, wakes, outcome) {
  const key = keyOf(model);
  return wakes.findLast((wake) => wake.key === key && wake.outcome === outcome);
}
