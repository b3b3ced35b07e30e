// Explains a failed request to the user: an error or a lost connection as `{ what, where, remedy }`.

const REMEDIES = {
  model_failed: "Models shows the reason and what to do. Once that is fixed, try again.",
  model_suspended: "Set spec.suspend to false in its manifest, or choose another model.",
  model_asleep: "It’s waking up now. Try again in a moment.",
  model_not_found: "Choose another model above; the list has those that your key opens.",
  wait_expired: "Models shows how far its wake is. Try again.",
  queue_full: "Other requests are ahead of yours. Try again in a moment.",
  context_length_exceeded: "Start a new conversation, shorten the message, or lower “Max tokens”.",
};

/** Problem of an answer with an error status, or of an `error` event within a stream. */
export function problemOfError(error, { status = 0, model = "", requestId = "", retryAfter = 0 } = {}) {
  const code = error?.code ?? "";
  const place = [status && `HTTP ${status}`, code, model, requestId && `request ${requestId}`];
  return {
    what: error?.message || `The gateway answered with status ${status}.`,
    where: place.filter(Boolean).join(" · "),
    remedy: remedyOf(error, status, retryAfter),
    isOfModel: code === "model_failed" || code === "model_suspended",
    isOfKey: status === 401 || status === 403,
  };
}

/** Problem of a connection that could not be made, or that broke. */
export function problemOfConnection(hasBegun) {
  return {
    what: hasBegun ? "The connection was lost during the answer." : "The gateway can’t be reached.",
    where: location.host,
    remedy: hasBegun
      ? "The part that arrived is kept: continue it, or regenerate it."
      : "It may be restarting. Try again in a moment; your message is kept.",
    isOfModel: false,
    isOfKey: false,
  };
}

/** Problem of an `ApiError`. */
export function problemOfRefusal(error, model) {
  const { status, message, code, field, headers } = error;
  const requestId = headers.get("x-request-id") ?? "";
  const retryAfter = Number(headers.get("retry-after")) || 0;
  return problemOfError({ message, code, param: field }, { status, model, requestId, retryAfter });
}

function remedyOf(error, status, retryAfter) {
  const wait = retryAfter ? ` The gateway suggests waiting ${retryAfter} s.` : "";
  if (REMEDIES[error?.code]) return REMEDIES[error.code] + wait;
  if (status === 401 || status === 403) return "Enter a key that opens this model, then try again.";
  if (status === 413) return "Send a shorter message, or start a new conversation.";
  if (status === 429) return `Too many requests for this key or model. Try again later.${wait}`;
  if (error?.param) return `Change “${error.param}” under Parameters, or edit the message.`;
  if (status === 400) return "Edit the message, or change the parameters.";
  return `Try again.${wait}`;
}
