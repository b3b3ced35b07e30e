// The Live view: rates, latencies, requests, caches and memory of the last 15 minutes as charts.

import { loadStyles } from "../browser/styles.js";
import { useTick } from "../clock.js";
import { feed } from "../feed.js";
import { formatBytes, formatCount, formatRate, formatSeconds, formatShare } from "../format.js";
import { Icon } from "../icons.js";
import { useStore } from "../store.js";
import { html, useMemo, useState } from "../vendor/preact.js";
import { POWERS_OF_TWO, WHOLE_NUMBERS } from "./axes.js";
import { Chart } from "./chart.js";
import { ModelFilter } from "./model_filter.js";
import { emptyText, keysOf, latencySeries, measureSeries, queueSeries, startOf, usesGpu } from "./series.js";

await loadStyles(new URL("../vendor/uplot.css", import.meta.url));

const IDLE_TICK_MS = 10_000; // the time axis moves on, also while nothing runs

const MEASURES = [
  { title: "Answer tokens per second", measure: "out", format: formatRate, atRest: 0 },
  { title: "Prompt tokens per second", measure: "in", format: formatRate, atRest: 0 },
  { title: "KV cache in use", measure: "kv", format: formatShare, top: 1 },
  { title: "Prompt tokens from the cache", measure: "prefixHits", format: formatShare, top: 1 },
  { title: "GPU memory in use", measure: "gpuUsed", format: formatBytes, steps: POWERS_OF_TWO },
];
const [ANSWERS, PROMPTS, ...REPORTED] = MEASURES;

export default function LiveView() {
  const samples = useStore(feed, (state) => state.samples);
  const requests = useStore(feed, (state) => state.requests);
  const models = useStore(feed, (state) => state.models);
  const [model, setModel] = useState("");
  useTick(IDLE_TICK_MS, true);
  const keys = useMemo(() => keysOf(samples, requests), [samples, requests]);
  if (samples.length === 0 && requests.length === 0) return html`<${Nothing} />`;
  const shown = model ? [model] : keys;
  const end = endOf(samples);
  const time = { start: startOf(samples, requests, end), end };
  const measured = (chart) =>
    html`<${Chart}
      key=${chart.measure}
      ...${chart}
      ...${time}
      series=${measureSeries(samples, shown, end, chart)}
      empty=${emptyText(samples, shown, chart)}
    />`;
  const reported = REPORTED.filter(({ measure }) => measure !== "gpuUsed" || usesGpu(models ?? [], samples, shown));
  return html`<div class="view-head">
      <h1>Live</h1>
      <p class="muted">${spanText(time)}</p>
      <${ModelFilter} value=${model} onChange=${setModel} others=${keys} />
    </div>
    <div class="charts">
      ${[ANSWERS, PROMPTS].map(measured)}
      <${Chart} title="Time to first token" format=${formatSeconds} ...${time}
        series=${latencySeries(requests, shown, end, "firstTokenSeconds")} />
      <${Chart} title="Time per token" format=${formatSeconds} ...${time}
        series=${latencySeries(requests, shown, end, "perTokenSeconds")} />
      <${Chart} title="Requests" format=${formatCount} steps=${WHOLE_NUMBERS} ...${time}
        series=${queueSeries(samples, shown, end)} />
      ${reported.map(measured)}
    </div>`;
}

function spanText({ start, end }) {
  const minutes = Math.round((end - start) / 60);
  return minutes <= 1 ? "The last minute" : `The last ${minutes} minutes`;
}

/** The gateway's time now: that of its last sample, and what has passed since it came. */
function endOf(samples) {
  const last = samples.at(-1);
  const now = Date.now() / 1000;
  return last && Math.abs(last.t - now) < 5 ? last.t : Math.max(now, last?.t ?? 0);
}

function Nothing() {
  return html`<section class="empty">
    <${Icon} name="live" />
    <h1>Nothing ran in the last 15 minutes</h1>
    <p>Rates, latencies and memory appear here while models answer. <a href="#/chat">Start a chat</a>, or send a
    request from code; <a href="#/models">Models</a> has examples.</p>
  </section>`;
}
