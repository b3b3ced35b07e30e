// The place of an answer before its first token: the model's wake with its phases, or the wait in its queue.
import { html, useEffect } from "../vendor/preact.js";
import { phaseOf } from "../views/phases.js";
import { Segment, SHOWN, segmentOf } from "../views/wake_bar.js";
import { useChanges, useSeconds } from "./hooks.js";

const HEARTBEAT = /^(.*?)\s*(\d+)\s*%$/;

/** Phases of the model's start so far, `{name, progress (0 to 1 or null), seconds}`, and the one that runs. */
export function phasesOf(model, heartbeat) {
  const phases = model?.startPhases ?? [];
  const [, beaten, percent] = HEARTBEAT.exec(heartbeat) ?? [null, heartbeat, null];
  const name = model?.phase || phases.at(-1)?.name || beaten;
  if (!name) return { phases, current: null };
  const known = phases.find((phase) => phase.name === name);
  const beat = percent === null || beaten !== name ? null : Number(percent) / 100;
  const current = { name, seconds: null, ...known, progress: known?.progress ?? model?.progress ?? beat };
  return { phases: [...phases.filter((phase) => phase.name !== name), current], current };
}

export function Wake({ generation, model, name }) {
  useChanges(generation);
  const seconds = useSeconds(generation.beganMs);
  const isAwake = model?.state === "Ready" || (!model?.state && !generation.wake);
  useEffect(() => {
    if (!isAwake) generation.answer.hasWoken = true;
  }, [isAwake]);
  if (isAwake) return html`<${Waiting} seconds=${seconds} waiting=${model?.waiting ?? 0} />`;
  const { phases, current } = phasesOf(model, generation.wake);
  return html`<div class="chat-wake">
    <p class="chat-wake-head">
      <strong>${model?.state === "Failed" ? `${name} failed to start` : `Waking ${name}`}</strong>
      <span class="chat-wake-seconds">${seconds.toFixed(1)} s</span>
    </p>
    <${Bar} name=${name} phases=${phases} current=${current} />
    <ol class="chat-phases">
      ${phases.map((phase) => html`<${Phase} key=${phase.name} phase=${phase} isCurrent=${phase === current} />`)}
    </ol>
    <p class="chat-wake-note">${model?.message && model.state === "Failed" ? model.message : hintOf(model, current)}</p>
  </div>`;
}

/** The same bar as in Models: a segment a phase, the current one filling. */
function Bar({ name, phases, current }) {
  const known = new Map(phases.map((phase) => [phase.name, phase]));
  const running = current?.name ?? SHOWN[0].name;
  const { progress } = current ?? { progress: null };
  return html`<div
    class="wake-bar"
    role="progressbar"
    aria-label=${`Start of ${name}`}
    aria-valuemin="0"
    aria-valuemax="100"
    aria-valuenow=${progress === null ? undefined : Math.round(progress * 100)}
  >
    ${SHOWN.map((phase) => html`<${Segment} key=${phase.name} ...${segmentOf(phase, running, known, progress)} />`)}
  </div>`;
}

function Phase({ phase, isCurrent }) {
  const progress = isCurrent && phase.progress !== null && phase.progress !== undefined;
  const detail = progress
    ? `${Math.round(phase.progress * 100)} %`
    : phase.seconds
      ? `${phase.seconds.toFixed(1)} s`
      : "";
  return html`<li class=${isCurrent ? "is-current" : ""}>
    ${isCurrent ? phaseOf(phase.name).doing : phaseOf(phase.name).label} <span>${detail}</span>
  </li>`;
}

function hintOf(model, current) {
  if (model?.lastColdStartSeconds) return `Its last start took ${model.lastColdStartSeconds.toFixed(1)} s.`;
  return current ? "Your message is held until it can answer." : "It runs nothing yet; your message starts it.";
}

function Waiting({ seconds, waiting }) {
  const queue = waiting > 1 ? ` ${waiting} requests wait.` : "";
  return html`<p class="chat-waiting">
    <span class="chat-dots" aria-hidden="true"></span> Waiting for the first token, ${seconds.toFixed(1)} s.${queue}
  </p>`;
}
