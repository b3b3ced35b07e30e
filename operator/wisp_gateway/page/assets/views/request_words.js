// Words of a request's row: its wait in the gateway's queue, and what its status means. Pure.

import { formatSeconds } from "../format.js";

const STATUSES = {
  401: "no valid key",
  404: "not found",
  429: "over a limit",
  499: "client disconnected",
  503: "unavailable",
};

/** Limits of a key, as rows name them. */
const LIMITS = {
  rpm: "over its key’s requests a minute (rpm)",
  tpm: "over its key’s tokens a minute (tpm)",
  concurrent: "over its key’s requests at once (concurrent)",
};

/** Time in the queue, and whether it was a wake's: "10.9 s for a wake". */
export function waitText({ queueSeconds, isWoken }) {
  const wait = formatSeconds(queueSeconds);
  if (!isWoken) return wait;
  return typeof queueSeconds === "number" ? `${wait} for a wake` : "for a wake";
}

/** What a status that is no success means: the limit or the gateway's code where the row has one; undefined: nothing. */
export function statusText({ status, code, limit }) {
  if (limit) return LIMITS[limit] ?? `over its key’s limit ${limit}`;
  return [STATUSES[status], code].filter(Boolean).join(": ") || undefined;
}
