// Follows the gateway's event stream (`/state/stream`) for as long as the page is open, and keeps all that it reports
// (models, samples, wakes, requests) in one store, `feed`, which the views read.

import { access, ApiError, request, requestJson } from "./api.js";
import { readEvents } from "./sse.js";
import { createStore } from "./store.js";

const KEPT_SECONDS = 15 * 60;
const KEPT_WAKES = 20;
const KEPT_REQUESTS = 2_000; // of which Requests shows 200; Live computes percentiles of all
const FLUSH_MS = 100; // views render ten times a second at most
const SILENCE_MS = 45_000; // the gateway writes something each 15 s
const MIN_WAIT_MS = 500;
const MAX_WAIT_MS = 5_000;

/**
 * `link`: "connecting", "open", "away" (no answer) or "locked" (it needs a key, or another one).
 * `models`: null until the first document; then by namespace and name.
 * `samples`, `wakes`, `requests`: oldest first.
 */
export const feed = createStore({
  link: "connecting",
  refusal: "",
  gateway: "",
  status: "",
  models: null,
  samples: [],
  wakes: [],
  requests: [],
});

export const keyOf = (model) => `${model.namespace}/${model.name}`;

/** Follow the gateway until the page is closed. */
export async function follow() {
  let waitMs = MIN_WAIT_MS;
  for (;;) {
    const { key } = access.get();
    try {
      await followOnce(() => (waitMs = MIN_WAIT_MS));
      lose();
    } catch (error) {
      if (access.get().key !== key) continue; // it ended for that
      if (error instanceof ApiError && error.isRefusedKey) {
        await lock(error);
        continue;
      }
      lose(error instanceof ApiError ? error.message : "");
    }
    await keyChange(waitMs);
    waitMs = Math.min(waitMs * 2, MAX_WAIT_MS);
  }
}

async function followOnce(onOpen) {
  const abort = new AbortController();
  const stopWatching = access.subscribe(() => abort.abort());
  let timer;
  const watch = () => {
    clearTimeout(timer);
    timer = setTimeout(() => abort.abort(), SILENCE_MS);
  };
  watch();
  try {
    const response = await request("state/stream", { signal: abort.signal });
    const history = requestJson("state/history", { signal: abort.signal });
    history.then(applyHistory, () => {}); // a gateway that just started has none
    for await (const { event, data } of readEvents(response)) {
      watch();
      if (!event) continue;
      apply(event, JSON.parse(data));
      onOpen();
    }
  } finally {
    clearTimeout(timer);
    stopWatching();
    abort.abort();
  }
}

const appliers = {
  state: (document) => ({
    link: "open",
    refusal: "",
    gateway: document.gateway ?? "",
    status: document.status ?? "",
    models: sorted((document.models ?? []).map(received)),
  }),
  model: (model, { models }) => ({ models: sorted([...without(models, keyOf(model)), received(model)]) }),
  gone: ({ key }, { models }) => ({ models: without(models, key) }),
  sample: (sample, { samples }) => ({ samples: recent([...samples, sample]) }),
  wake: (wake, { wakes }) => ({ wakes: inOrder(merged(wakes, [received(wake)], wakeId, KEPT_WAKES)) }),
  request: (row, { requests }) => ({ requests: [...requests, row].slice(-KEPT_REQUESTS) }),
};

let pending = null;
let flushTimer;

/** Take an event in; views see it within `FLUSH_MS`, with all that came meanwhile. */
function apply(event, data) {
  const base = pending ?? feed.get();
  const changes = appliers[event]?.(data, base);
  if (!changes) return;
  pending = { ...base, ...changes };
  if (event === "state") flush();
  else flushTimer ??= setTimeout(flush, FLUSH_MS);
}

function flush() {
  clearTimeout(flushTimer);
  flushTimer = undefined;
  if (pending) feed.set(pending);
  pending = null;
}

/** `document` with the moment at which it came: clocks of other machines may differ from this one. */
const received = (document) => ({ ...document, receivedMs: performance.now() });

function applyHistory({ samples = [], wakes = [], requests = [] }) {
  flush();
  const now = feed.get();
  const last = samples.at(-1)?.t ?? 0;
  feed.set({
    samples: recent([...samples, ...now.samples.filter(({ t }) => t > last)]),
    wakes: mergedWakes(wakes.map(received), now.wakes),
    requests: mergedRequests(requests, now.requests),
  });
}

const inOrder = (wakes) => wakes.sort((a, b) => a.began - b.began); // not of their ends
export const wakeId = (wake) => `${wake.key} ${wake.began}`;

/** Wakes of the history and `older` ones of the page; of these none still runs that the gateway, started anew, lacks. */
export function mergedWakes(rows, older) {
  const known = new Set(rows.map(wakeId));
  const kept = older.filter((wake) => wake.outcome !== "running" || known.has(wakeId(wake)));
  return inOrder(merged(rows, kept, wakeId, KEPT_WAKES));
}

/** A request's id, or what tells it apart where the feed hides that: a model's own key sees no ids. */
export const requestId = (row) => row.id || `${row.key} ${row.time} ${row.seconds}`;

export const mergedRequests = (rows, newer) => merged(rows, newer, requestId, KEPT_REQUESTS);

/** `rows` with `newer` in their places or after them, the last `limit`. */
function merged(rows, newer, idOf, limit) {
  const byId = new Map(rows.map((row) => [idOf(row), row]));
  for (const row of newer) byId.set(idOf(row), row);
  return [...byId.values()].slice(-limit);
}

function recent(samples) {
  const from = (samples.at(-1)?.t ?? 0) - KEPT_SECONDS;
  const first = samples.findIndex(({ t }) => t >= from);
  return first > 0 ? samples.slice(first) : samples;
}

function sorted(models) {
  return [...models].sort((a, b) => keyOf(a).localeCompare(keyOf(b)));
}

function without(models, key) {
  return (models ?? []).filter((model) => keyOf(model) !== key);
}

function lose(refusal = "") {
  flush();
  feed.set({ link: "away", refusal });
}

async function lock(error) {
  flush();
  const { key } = access.get();
  feed.set({ link: "locked", refusal: key ? error.message : "", models: null, samples: [], wakes: [], requests: [] });
  await keyChange();
  feed.set({ link: "connecting", refusal: "" });
}

/** Wait for another key, at most `ms` milliseconds if they are given. */
function keyChange(ms) {
  return new Promise((resolve) => {
    const done = () => {
      stop();
      clearTimeout(timer);
      resolve();
    };
    const stop = access.subscribe(done);
    const timer = ms === undefined ? undefined : setTimeout(done, ms);
  });
}
