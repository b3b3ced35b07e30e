// The Wakes view: the last wakes as stacked bars by phase, on one scale.

import { secondsSince, useTick } from "../clock.js";
import { feed, wakeId } from "../feed.js";
import { formatMoment, formatRunning, formatSeconds } from "../format.js";
import { Icon } from "../icons.js";
import { STATES, titled } from "../models/states.js";
import { useStore } from "../store.js";
import { html } from "../vendor/preact.js";
import { phaseOf, PHASES } from "../models/phases.js";
import { wordsOf } from "../models/reasons.js";

const LEAST_REST_S = 0.05; // of a wake's time that no phase explains

export default function WakesView() {
  const wakes = useStore(feed, (state) => state.wakes);
  const isRunning = wakes.some(({ outcome }) => outcome === "running");
  useTick(100, isRunning);
  if (wakes.length === 0) return html`<${NoWake} />`;
  const longest = Math.max(...wakes.map((wake) => Math.max(secondsOf(wake), knownOf(wake))), 0.001);
  return html`<div class="view-head">
      <h1>Wakes</h1>
      <p class="muted">${wakes.length === 1 ? "One wake" : `The last ${wakes.length}, newest first`}: each from the request
      or the button that began it until the model was ready</p>
    </div>
    <${Phases} wakes=${wakes} />
    <ol class="wakes">
      ${wakes.toReversed().map((wake) => html`<${Wake} key=${wakeId(wake)} wake=${wake} longest=${longest} />`)}
    </ol>`;
}

function knownOf(wake) {
  return (wake.phases ?? []).reduce((sum, phase) => sum + Math.max(0, phase.seconds ?? 0), 0);
}

function secondsOf(wake) {
  return (wake.seconds ?? 0) + (wake.outcome === "running" ? secondsSince(wake.receivedMs) : 0);
}

/** Colours of the phases that are shown, and on demand an explanation of each. */
function Phases({ wakes }) {
  const seen = new Set(wakes.flatMap(({ phases }) => (phases ?? []).map(({ name }) => name)));
  const shown = PHASES.filter(({ name }) => seen.has(name));
  return html`<ul class="legend" aria-label="Phases">
      ${shown.map(
        ({ name, label }) =>
          html`<li key=${name}><span class=${`swatch phase-${name}`} aria-hidden="true"></span>${label}</li>`,
      )}
    </ul>
    ${shown.length > 0 &&
    html`<details class="phases small">
      <summary>What happens in each phase</summary>
      <dl>
        ${shown.map(({ name, label, about }) => html`<div key=${name}><dt>${label}</dt><dd>${titled(about)}.</dd></div>`)}
      </dl>
    </details>`}`;
}

function Wake({ wake, longest }) {
  const seconds = secondsOf(wake);
  const phases = (wake.phases ?? []).filter((phase) => phase.seconds > 0);
  const known = knownOf(wake);
  const isRunning = wake.outcome === "running";
  return html`<li class="wake-row">
    <div class="wake-line">
      <span><strong>${wake.key}</strong> <span class="muted number">${formatMoment(wake.began)}</span></span>
      <span class="wake-end"><${Outcome} wake=${wake} /><span class="number total">
        ${isRunning ? formatRunning(seconds) : formatSeconds(seconds)}
      </span></span>
    </div>
    <div class="track" aria-hidden="true">
      <div class="stack" style=${{ width: `${Math.max(0.5, (Math.max(seconds, known) / longest) * 100)}%` }}>
        ${phases.map(
          ({ name, seconds }) => html`<span
            key=${name}
            class=${`segment phase-${name}`}
            title=${titleOf(name, seconds)}
            style=${{ flexGrow: seconds }}
          ></span>`,
        )}
        ${seconds > known && html`<span class="segment rest" style=${{ flexGrow: seconds - known }}></span>`}
      </div>
    </div>
    <ul class="legend">
      ${phases.map(
        ({ name, seconds }) => html`<li key=${name}>${phaseOf(name).label} <span class="number">${formatSeconds(seconds)}</span></li>`,
      )}
      ${!isRunning &&
      seconds - known > LEAST_REST_S &&
      html`<li>Not reported <span class="number">${formatSeconds(seconds - known)}</span></li>`}
    </ul>
  </li>`;
}

function titleOf(name, seconds) {
  const { label, about } = phaseOf(name);
  return `${label}, ${formatSeconds(seconds)}${about ? `: ${about}` : ""}`;
}

const OUTCOMES = {
  ready: STATES.Ready,
  running: STATES.Waking,
  failed: STATES.Failed,
  abandoned: { word: "abandoned", style: "" },
};

function Outcome({ wake }) {
  const { word, style } = OUTCOMES[wake.outcome] ?? { word: wake.outcome, style: "" };
  const reason = wake.outcome === "failed" ? wordsOf(wake.reason) : "";
  return html`<span class=${`pill ${style}`}>${reason || titled(word)}</span>`;
}

function NoWake() {
  const models = useStore(feed, (state) => state.models);
  const isLocal = models?.some(({ canStop }) => canStop); // `wisp up` stops models, a cluster's operator none
  return html`<section class="empty">
    <${Icon} name="wakes" />
    <h1>No wakes yet</h1>
    <p>Each wake is listed here with the time of each phase. Send a request to a sleeping model, or wake one
    under <a href="#/models">Models</a>.</p>
    <p class="muted small">Wakes since this gateway started.${!isLocal &&
    html` The last one before, on a cluster: <code>kubectl describe inferencemodel NAME</code>.`}</p>
  </section>`;
}
