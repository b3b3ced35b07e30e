// One answer of a model: its state, text, thinking and tool calls, filled by the chunks of a stream.

/** States of an answer: waiting, answering, done, stopped (by the user), interrupted, failed. */
const RUNNING = new Set(["waiting", "answering"]);

export function newAnswer(model) {
  return {
    model,
    state: "waiting",
    content: "",
    reasoning: "",
    calls: [],
    finish: "",
    problem: null,
    usage: null,
    firstTokenSeconds: null,
    tokensPerSecond: null,
    hasWoken: false,
    thinkingSeconds: null,
  };
}

export function isRunning(answer) {
  return RUNNING.has(answer.state);
}

/** An answer that can be sent back to the model as a message. */
export function isUsable(answer) {
  return Boolean(answer.content || answer.calls.length);
}

/** Add one chunk of a chat completion to `answer`; return true if it held text, thinking or a call. */
export function addChunk(answer, chunk) {
  if (chunk.usage) answer.usage = usageOf(chunk.usage);
  const choice = chunk.choices?.[0];
  if (!choice) return false;
  if (choice.finish_reason) answer.finish = choice.finish_reason;
  const delta = choice.delta ?? {};
  const thought = delta.reasoning_content ?? delta.reasoning ?? "";
  answer.reasoning += thought;
  answer.content += delta.content ?? "";
  for (const call of delta.tool_calls ?? []) addCall(answer.calls, call);
  return Boolean(thought || delta.content || delta.tool_calls?.length);
}

function addCall(calls, delta) {
  const call = (calls[delta.index ?? calls.length] ??= { id: "", name: "", arguments: "" });
  if (delta.id) call.id = delta.id;
  call.name += delta.function?.name ?? "";
  call.arguments += delta.function?.arguments ?? "";
}

function usageOf(usage) {
  return {
    prompt: usage.prompt_tokens ?? 0,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
    completion: usage.completion_tokens ?? 0,
    reasoning: usage.completion_tokens_details?.reasoning_tokens ?? 0,
  };
}

/** Rate of the tokens behind the first, from the counts of the stream's end. */
export function setRates(answer, { sentMs, firstMs, lastMs }) {
  if (firstMs === null) return;
  answer.firstTokenSeconds = (firstMs - sentMs) / 1000;
  const tokens = (answer.usage?.completion ?? 0) - 1;
  const seconds = (lastMs - firstMs) / 1000;
  answer.tokensPerSecond = tokens > 0 && seconds > 0 ? tokens / seconds : null;
}
