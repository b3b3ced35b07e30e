// The phases of a wake: their order, their names for people, their colours (`phase-NAME` in style.css).

export const PHASES = [
  { name: "schedule", label: "Place", doing: "Finding a place to run" },
  { name: "import", label: "Start", doing: "Starting the runtime" },
  { name: "pull", label: "Fetch", doing: "Fetching weights" },
  { name: "weights", label: "Weights", doing: "Loading weights" },
  { name: "kernels", label: "Kernels", doing: "Preparing kernels" },
  { name: "firstToken", label: "First token", doing: "Computing a first token" },
  { name: "ready", label: "Connect", doing: "Connecting" },
  { name: "answer", label: "First answer", doing: "Beginning the first answer" },
];

const byName = new Map(PHASES.map((phase) => [phase.name, phase]));

export function phaseOf(name) {
  return byName.get(name) ?? { name, label: name, doing: name };
}
