// The place of an answer before its first token: the model's wake with its phases, or the wait in its queue.

import { secondsSince, useTick } from "../clock.js";
import { feed } from "../feed.js";
import { formatProgress, formatRunning, formatSeconds } from "../format.js";
import { PhaseBar } from "../models/phase_bar.js";
import { lastWakeSecondsOf, phaseOf, wakeOf, wakeSecondsOf } from "../models/phases.js";
import { useChanges, useStore } from "../store.js";
import { html, useEffect } from "../vendor/preact.js";

const TICK_MS = 200;
const JOINED_S = 0.5; // a wake that began earlier than this before the message is not the message’s own

export function Wake({ generation, model, name }) {
  useChanges(generation);
  useTick(TICK_MS, true);
  const wakes = useStore(feed, (state) => state.wakes);
  const seconds = secondsSince(generation.beganMs);
  const isAwake = model?.state === "Ready" || (!model?.state && !generation.wake);
  useEffect(() => {
    if (!isAwake) generation.answer.hasWoken = true;
  }, [isAwake]);
  if (isAwake) return html`<${Waiting} seconds=${seconds} waiting=${model?.waiting ?? 0} />`;
  const wake = wakeOf(model, generation.wake);
  const earlierS = model?.state === "Waking" ? wakeSecondsOf(model, wakes) - seconds : 0;
  const isJoined = earlierS > JOINED_S;
  const joined = isJoined ? `It was waking already; your message has waited ${formatRunning(seconds)}. ` : "";
  return html`<div class="chat-wake">
    <p class="chat-wake-head">
      <strong>${model?.state === "Failed" ? `${name} failed to start` : `Waking ${name}`}</strong>
      <span class="chat-wake-seconds">${formatRunning(isJoined ? seconds + earlierS : seconds)}</span>
    </p>
    <${PhaseBar} label=${`Start of ${name}`} ...${wake} />
    <p class="chat-wake-note">${joined}${noteOf(model, wake, wakes)}</p>
  </div>`;
}

function noteOf(model, { current, progress }, wakes) {
  if (model?.state === "Failed" && model.message) return model.message;
  const lastSeconds = model ? lastWakeSecondsOf(model, wakes) : null;
  const last = lastSeconds === null ? "" : ` The last wake took ${formatSeconds(lastSeconds)}.`;
  if (!current) return `Your message starts it.${last}`;
  return `${phaseOf(current).doing}${progress === null ? "" : ` ${formatProgress(progress)}`}.${last}`;
}

function Waiting({ seconds, waiting }) {
  const queue = waiting > 1 ? ` ${waiting} requests are waiting.` : "";
  return html`<p class="chat-waiting">
    <span class="chat-dots" aria-hidden="true"></span> Waiting for the first token, ${formatRunning(seconds)}.${queue}
  </p>`;
}
