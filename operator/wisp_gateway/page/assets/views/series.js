// Turns samples and requests into the lines of charts. Pure: a line is `{ label, hue, x, y }`, `y` null where unknown.

import { keyOf } from "../feed.js";
import { isOnCpu } from "../models/states.js";

const WINDOW_S = 15 * 60;
const MIN_SPAN_S = 60;
const GAP_S = 15; // samples come each second, or each ten from the history; later ones follow a rest
const BUCKET_S = 10;
const PERCENTILE_WINDOW_S = 60;
const HUES = 7;

/** Where the time axis begins: 15 minutes before `end`, or at the first value if that came later. */
export function startOf(samples, requests, end) {
  const first = Math.min(samples[0]?.t ?? end, requests[0]?.time ?? end);
  return Math.max(end - WINDOW_S, Math.min(first, end - MIN_SPAN_S));
}

/** Keys of the models that have something to show, in a stable order. */
export function keysOf(samples, requests) {
  const keys = new Set(requests.map(({ key }) => key).filter(Boolean));
  for (const { models } of samples) for (const key of Object.keys(models ?? {})) keys.add(key);
  return [...keys].sort();
}

/** A measure of each model; `atRest` is its value while nothing runs (undefined: unknown). */
export function measureSeries(samples, keys, end, { measure, atRest }) {
  const series = keys.map((key, place) => ({
    label: key,
    hue: (place % HUES) + 1,
    ...withRests(samples, end, ({ models }) => models?.[key]?.[measure] ?? atRest ?? null, atRest ?? null),
  }));
  const isShown = (value) => value !== null && (value !== 0 || atRest === undefined); // at rest it is 0 anyway
  return series.filter(({ y }) => y.some(isShown));
}

/** Text of a measure's chart that has no line: nothing ran, or it was not measured. */
export function emptyText(samples, keys, { atRest }) {
  const isAsked = keys.length > 0 && samples.some(({ models }) => keys.some((key) => models?.[key]));
  if (atRest !== undefined || !isAsked) return "No data";
  return "Not measured: pods report it every few seconds, while a page is open";
}

/** Whether any of the models runs on a GPU, or a sample says that it did. */
export function usesGpu(models, samples, keys) {
  const shown = new Set(keys);
  if (models.some((model) => shown.has(keyOf(model)) && !isOnCpu(model))) return true;
  return samples.some((sample) => keys.some((key) => typeof sample.models?.[key]?.gpuUsed === "number"));
}

export function queueSeries(samples, keys, end) {
  const sum = (measure) => (sample) => keys.reduce((total, key) => total + (sample.models?.[key]?.[measure] ?? 0), 0);
  return [
    { label: "Running", hue: 1, ...withRests(samples, end, sum("running"), 0) },
    { label: "Waiting", hue: 3, ...withRests(samples, end, sum("waiting"), 0) },
  ];
}

/** Values over time; between samples that are far apart, and after the last, nothing ran: `rest`. */
function withRests(samples, end, valueOf, rest) {
  const x = [];
  const y = [];
  const put = (t, value) => {
    x.push(t);
    y.push(value);
  };
  for (const sample of samples) {
    if (sample.t < end - WINDOW_S) continue;
    const before = x.at(-1);
    if (before !== undefined && sample.t - before > GAP_S) {
      put(before + 1, rest);
      put(sample.t - 1, rest);
    }
    put(sample.t, valueOf(sample));
  }
  if (x.length && end - x.at(-1) > 3) {
    put(x.at(-1) + 1, rest);
    put(end, rest);
  }
  return { x, y };
}

/** Percentiles over the last minute, each ten seconds. */
export function latencySeries(requests, keys, end, field) {
  const wanted = new Set(keys);
  const rows = requests
    .filter((row) => wanted.has(row.key) && typeof row[field] === "number" && row.time > end - WINDOW_S - PERCENTILE_WINDOW_S)
    .map((row) => ({ time: row.time, value: row[field] }))
    .sort((a, b) => a.time - b.time);
  const last = Math.floor(end / BUCKET_S) * BUCKET_S;
  const x = [];
  const values = [];
  for (let t = last - WINDOW_S; t <= last + BUCKET_S; t += BUCKET_S) {
    x.push(Math.min(t, end));
    values.push(rows.filter(({ time }) => time > t - PERCENTILE_WINDOW_S && time <= t).map(({ value }) => value));
  }
  return [
    ["Median", 0.5, 1],
    ["p95", 0.95, 3],
    ["p99", 0.99, 4],
  ].map(([label, share, hue]) => ({ label, hue, x, y: values.map((list) => percentile(list, share)) }));
}

/** The smallest value that at least `share` of them do not exceed; null without values. */
export function percentile(values, share) {
  if (values.length === 0) return null;
  const ordered = values.toSorted((a, b) => a - b);
  return ordered[Math.min(ordered.length - 1, Math.ceil(share * ordered.length) - 1)];
}
