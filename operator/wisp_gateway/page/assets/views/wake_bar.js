// The wake that runs, on a model's card: the phase in words, seconds that tick, and the bar.

import { secondsSince, useTick } from "../clock.js";
import { feed, keyOf } from "../feed.js";
import { formatProgress, formatRunning, formatSeconds } from "../format.js";
import { PhaseBar } from "../models/phase_bar.js";
import { phaseOf, wakeOf } from "../models/phases.js";
import { useStore } from "../store.js";
import { html } from "../vendor/preact.js";

export function WakeBar({ model }) {
  useTick(100, true);
  const key = keyOf(model);
  const row = useStore(feed, ({ wakes }) => wakes.findLast((wake) => wake.key === key && wake.outcome === "running"));
  const wake = wakeOf(model);
  const { doing } = phaseOf(wake.current || "schedule");
  return html`<div class="wake">
    <div class="wake-line">
      <strong>${doing}${wake.progress === null ? "" : ` ${formatProgress(wake.progress)}`}</strong>
      <span class="number">${formatRunning(elapsedOf(model, row))}</span>
    </div>
    <${PhaseBar} label=${`Waking ${model.name}`} ...${wake} />
    ${model.lastColdStartSeconds > 0 &&
    html`<p class="muted small">The last wake took ${formatSeconds(model.lastColdStartSeconds)}.</p>`}
  </div>`;
}

function elapsedOf(model, row) {
  if (row) return row.seconds + secondsSince(row.receivedMs);
  const known = (model.startPhases ?? []).reduce((sum, { seconds }) => sum + (seconds ?? 0), 0);
  return known + secondsSince(model.receivedMs);
}
