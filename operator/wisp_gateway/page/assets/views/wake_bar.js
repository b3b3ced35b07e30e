// The wake that runs, on a model's card: the phase in words, seconds that tick, and the bar.

import { useTick } from "../clock.js";
import { feed } from "../feed.js";
import { formatProgress, formatRunning, formatSeconds } from "../format.js";
import { PhaseBar } from "../models/phase_bar.js";
import { lastWakeSecondsOf, phaseOf, wakeOf, wakeSecondsOf } from "../models/phases.js";
import { useStore } from "../store.js";
import { html } from "../vendor/preact.js";

export function WakeBar({ model }) {
  useTick(100, true);
  const wakes = useStore(feed, (state) => state.wakes);
  const lastSeconds = lastWakeSecondsOf(model, wakes);
  const wake = wakeOf(model);
  const { doing } = phaseOf(wake.current || "schedule");
  return html`<div class="wake">
    <div class="wake-line">
      <strong>${doing}${wake.progress === null ? "" : ` ${formatProgress(wake.progress)}`}</strong>
      <span class="number">${formatRunning(wakeSecondsOf(model, wakes))}</span>
    </div>
    <${PhaseBar} label=${`Waking ${model.name}`} ...${wake} />
    ${lastSeconds !== null &&
    html`<p class="muted small">The last wake took ${formatSeconds(lastSeconds)}.</p>`}
  </div>`;
}
