// The wake that runs: a segment a phase, the current one filling, and seconds that tick.

import { secondsSince, useTick } from "../clock.js";
import { feed, keyOf } from "../feed.js";
import { formatRunning, formatSeconds } from "../format.js";
import { useStore } from "../store.js";
import { html } from "../vendor/preact.js";
import { PHASES, phaseOf } from "./phases.js";

/** Phases of a wake that runs, in order. */
export const SHOWN = PHASES.filter(({ name }) => name !== "ready" && name !== "answer");

export function WakeBar({ model }) {
  useTick(100, true);
  const key = keyOf(model);
  const wake = useStore(feed, ({ wakes }) => wakes.findLast((row) => row.key === key && row.outcome === "running"));
  const phases = new Map((model.startPhases ?? []).map((phase) => [phase.name, phase]));
  const current = model.phase ?? model.startPhases?.at(-1)?.name ?? "schedule";
  const progress = phases.get(current)?.progress ?? model.progress;
  const percent = progress === null || progress === undefined ? null : Math.floor(progress * 100);
  return html`<div class="wake">
    <div class="wake-line">
      <strong>${phaseOf(current).doing}${percent === null ? "" : ` ${percent} %`}</strong>
      <span class="number">${formatRunning(elapsedOf(model, wake))}</span>
    </div>
    <div
      class="wake-bar"
      role="progressbar"
      aria-label=${`Waking ${model.name}: ${phaseOf(current).doing}`}
      aria-valuemin="0"
      aria-valuemax="100"
      aria-valuenow=${percent ?? undefined}
    >
      ${SHOWN.map((phase) => html`<${Segment} key=${phase.name} ...${segmentOf(phase, current, phases, progress)} />`)}
    </div>
    <ol class="wake-phases">
      ${SHOWN.map(({ name, label }) => {
        const seconds = phases.get(name)?.seconds;
        return html`<li key=${name} aria-current=${name === current ? "step" : undefined}>
          <span>${label}</span>
          <span class="number">${seconds === undefined ? "" : formatSeconds(seconds)}</span>
        </li>`;
      })}
    </ol>
    ${model.lastColdStartSeconds > 0 &&
    html`<p class="muted small">The last wake took ${formatSeconds(model.lastColdStartSeconds)}.</p>`}
  </div>`;
}

export function Segment({ name, state, share }) {
  return html`<span class=${`segment phase-${name} ${state}`}><span style=${{ width: `${share * 100}%` }}></span></span>`;
}

/** How a phase of `SHOWN` is shown while `current` runs. */
export function segmentOf({ name }, current, phases, progress) {
  const order = SHOWN.findIndex((phase) => phase.name === name);
  const now = SHOWN.findIndex((phase) => phase.name === current);
  if (order < now || now === -1) return { name, state: "done", share: 1 };
  if (order > now) return { name, state: "ahead", share: 0 };
  const isKnown = progress !== null && progress !== undefined;
  return { name, state: isKnown ? "current" : "current unmeasured", share: isKnown ? progress : 1 };
}

function elapsedOf(model, wake) {
  if (wake) return wake.seconds + secondsSince(wake.receivedMs);
  const known = (model.startPhases ?? []).reduce((sum, { seconds }) => sum + (seconds ?? 0), 0);
  return known + secondsSince(model.receivedMs);
}
