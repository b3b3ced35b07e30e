// Requests to the gateway: its key, kept for this session of the browser only, and its errors.

import { keptKey } from "./browser/storage.js";
import { createStore } from "./store.js";

/** The key in use (empty: none). */
export const access = createStore({ key: keptKey.get() });

export function setKey(key) {
  keptKey.set(key);
  access.set({ key });
}

/** An answer that is not 2xx: `status`, the gateway's own sentence, and the request's field that is wrong, if one is. */
export class ApiError extends Error {
  constructor(status, message, { code = "", field = "", headers = new Headers() } = {}) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.field = field;
    this.headers = headers;
  }

  /** True if another key would help. */
  get isRefusedKey() {
    return this.status === 401 || this.code === "invalid_api_key";
  }
}

/** What to say of a request that failed: the gateway's own sentence, or that there was none. */
export function sentenceOf(error) {
  return error instanceof ApiError ? error.message : "The gateway can’t be reached. Try again in a moment.";
}

/**
 * Fetch `path`, relative to the page, with the key.
 * @throws ApiError for an answer that is not 2xx; TypeError if the gateway does not answer.
 */
export async function request(path, { body, headers, ...options } = {}) {
  const { key } = access.get();
  const sent = { ...(key && { authorization: `Bearer ${key}` }), ...headers };
  if (body !== undefined) sent["content-type"] = "application/json";
  const response = await fetch(path, {
    cache: "no-store",
    credentials: "omit",
    method: body === undefined ? "GET" : "POST",
    ...options,
    headers: sent,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (!response.ok) throw await errorOf(response);
  return response;
}

export async function requestJson(path, options) {
  return (await request(path, options)).json();
}

async function errorOf(response) {
  const text = await response.text().catch(() => "");
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // A proxy in between has no JSON to say.
  }
  const message = error.message ?? `The gateway answered ${response.status}.`;
  return new ApiError(response.status, message, { code: error.code ?? "", field: error.param ?? "", headers: response.headers });
}
