// The place of an answer before its first token: the model's wake with its phases, or the wait in its queue.

import { secondsSince, useTick } from "../clock.js";
import { formatProgress, formatRunning, formatSeconds } from "../format.js";
import { PhaseBar } from "../models/phase_bar.js";
import { phaseOf, wakeOf } from "../models/phases.js";
import { useChanges } from "../store.js";
import { html, useEffect } from "../vendor/preact.js";

const TICK_MS = 200;

export function Wake({ generation, model, name }) {
  useChanges(generation);
  useTick(TICK_MS, true);
  const seconds = secondsSince(generation.beganMs);
  const isAwake = model?.state === "Ready" || (!model?.state && !generation.wake);
  useEffect(() => {
    if (!isAwake) generation.answer.hasWoken = true;
  }, [isAwake]);
  if (isAwake) return html`<${Waiting} seconds=${seconds} waiting=${model?.waiting ?? 0} />`;
  const wake = wakeOf(model, generation.wake);
  return html`<div class="chat-wake">
    <p class="chat-wake-head">
      <strong>${model?.state === "Failed" ? `${name} failed to start` : `Waking ${name}`}</strong>
      <span class="chat-wake-seconds">${formatRunning(seconds)}</span>
    </p>
    <${PhaseBar} label=${`Start of ${name}`} ...${wake} />
    <p class="chat-wake-note">${noteOf(model, wake)}</p>
  </div>`;
}

function noteOf(model, { current, progress }) {
  if (model?.state === "Failed" && model.message) return model.message;
  const last = model?.lastColdStartSeconds ? ` The last wake took ${formatSeconds(model.lastColdStartSeconds)}.` : "";
  if (!current) return `Your message starts it.${last}`;
  return `${phaseOf(current).doing}${progress === null ? "" : ` ${formatProgress(progress)}`}.${last}`;
}

function Waiting({ seconds, waiting }) {
  const queue = waiting > 1 ? ` ${waiting} requests are waiting.` : "";
  return html`<p class="chat-waiting">
    <span class="chat-dots" aria-hidden="true"></span> Waiting for the first token, ${formatRunning(seconds)}.${queue}
  </p>`;
}
