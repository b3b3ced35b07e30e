// A wake that runs, as a bar: a segment for each phase, the current one filling, its name and seconds below.

import { formatSeconds } from "../format.js";
import { html } from "../vendor/preact.js";
import { PHASES, phaseOf } from "./phases.js";

/** Phases that are known while a wake runs, in order. */
const SHOWN = PHASES.filter(({ name }) => name !== "answer");

/** `label`: what the bar is about; the others as `wakeOf` has them. */
export function PhaseBar({ label, phases, current, progress }) {
  const now = current || SHOWN[0].name;
  const secondsOf = new Map(phases.map(({ name, seconds }) => [name, seconds]));
  return html`<div
      class="wake-bar"
      role="progressbar"
      aria-label=${label}
      aria-valuetext=${phaseOf(now).doing}
      aria-valuemin="0"
      aria-valuemax="100"
      aria-valuenow=${progress === null ? undefined : Math.floor(progress * 100)}
    >
      ${SHOWN.map(({ name }) => html`<${Segment} key=${name} name=${name} ...${fillOf(name, now, progress)} />`)}
    </div>
    <ol class="wake-phases">
      ${SHOWN.map(
        ({ name, label }) => html`<li key=${name} aria-current=${name === now ? "step" : undefined}>
          <span>${label}</span>
          <span class="number">${secondsOf.get(name) > 0 ? formatSeconds(secondsOf.get(name)) : ""}</span>
        </li>`,
      )}
    </ol>`;
}

function Segment({ name, state, share }) {
  return html`<span class=${`segment phase-${name} ${state}`}><span style=${{ width: `${share * 100}%` }}></span></span>`;
}

/** State of a segment while the phase `current` runs, and the share of it that is filled. */
function fillOf(name, current, progress) {
  const order = SHOWN.findIndex((phase) => phase.name === name);
  const now = SHOWN.findIndex((phase) => phase.name === current);
  if (order < now || now === -1) return { state: "done", share: 1 };
  if (order > now) return { state: "ahead", share: 0 };
  return { state: progress === null ? "current unmeasured" : "current", share: progress ?? 1 };
}
