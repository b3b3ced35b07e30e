// Phases of a wake: their order, their names, their colours (`phase-NAME` in style.css), and how far a wake is.

export const PHASES = [
  { name: "schedule", label: "Schedule", doing: "Scheduling" },
  { name: "import", label: "Start", doing: "Starting the runtime" },
  { name: "pull", label: "Fetch", doing: "Fetching weights" },
  { name: "weights", label: "Weights", doing: "Loading weights" },
  { name: "kernels", label: "Kernels", doing: "Preparing kernels" },
  { name: "firstToken", label: "First token", doing: "Computing the first token" },
  { name: "answer", label: "First answer", doing: "Starting the first answer" },
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
