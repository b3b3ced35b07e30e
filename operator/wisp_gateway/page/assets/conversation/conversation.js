// Conversations as plain values: turns of a user's text and one answer a model, and what is sent of them.
import { isRunning, isUsable } from "./answer.js";

export const MAX_TITLE = 80;

/** Parameters that are sent as they are; empty ones are left out, and the model's own defaults apply. */
export const NUMBERS = [
  { name: "temperature", label: "Temperature", min: 0, max: 2, step: 0.1, fallback: 1 },
  { name: "top_p", label: "Top p", min: 0, max: 1, step: 0.05, fallback: 1 },
  { name: "top_k", label: "Top k", min: -1, max: 1000, step: 1, fallback: "off" },
  { name: "min_p", label: "Min p", min: 0, max: 1, step: 0.01, fallback: 0 },
  { name: "max_tokens", label: "Max tokens", min: 1, max: 10000000, step: 1, fallback: "as many as fit" },
  { name: "seed", label: "Seed", step: 1, fallback: "random" },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, fallback: 0 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, fallback: 0 },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.01, max: 100, step: 0.05, fallback: 1 },
];

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(36)).join("");

export function newConversation(models) {
  const now = Date.now();
  return {
    id: newId(),
    title: "",
    isNamed: false,
    created: now,
    updated: now,
    models,
    system: "",
    parameters: {},
    turns: [],
  };
}

export function newTurn(text, answers, results = null) {
  return { id: newId(), time: Date.now(), text, results, answers };
}

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const line = conversation.turns[0]?.text.trim().split("\n")[0] ?? "";
  return line.slice(0, MAX_TITLE) || "New conversation";
}

/** Answer of one column; a turn with fewer answers gives its last. */
export function answerOf(turn, column) {
  return turn.answers[Math.min(column, turn.answers.length - 1)];
}

/** Messages of the turns before `end` and of turn `end` without its answer, as one column's model has seen them. */
export function messagesOf(conversation, end, column) {
  const messages = [];
  if (conversation.system.trim()) messages.push({ role: "system", content: conversation.system });
  for (const [index, turn] of conversation.turns.slice(0, end + 1).entries()) {
    addQuestion(messages, turn);
    const answer = index < end ? answerOf(turn, column) : null;
    if (answer && isUsable(answer)) messages.push(messageOf(answer));
  }
  return messages;
}

function addQuestion(messages, turn) {
  const last = messages.at(-1);
  for (const result of turn.results ?? []) {
    messages.push({ role: "tool", tool_call_id: result.id, content: result.content });
  }
  if (turn.results) return;
  if (last?.role === "user")
    last.content += `\n\n${turn.text}`; // its answer failed: templates want roles to alternate
  else messages.push({ role: "user", content: turn.text });
}

export function messageOf(answer) {
  const message = { role: "assistant", content: answer.content };
  if (answer.reasoning) message.reasoning_content = answer.reasoning;
  if (answer.calls.length) {
    message.tool_calls = answer.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return message;
}

/** Body of the request for one answer; `partial` is an interrupted answer to go on with. */
export function bodyOf(conversation, end, column, partial = null) {
  const body = { model: conversation.models[column], messages: messagesOf(conversation, end, column) };
  Object.assign(body, parametersOf(conversation.parameters));
  if (partial) {
    body.messages.push({ role: "assistant", content: partial.content });
    Object.assign(body, { add_generation_prompt: false, continue_final_message: true });
  }
  return { ...body, stream: true, stream_options: { include_usage: true } };
}

/** Fields of a request, from the texts and numbers that the form holds. */
export function parametersOf(parameters) {
  const fields = {};
  for (const { name } of NUMBERS) {
    if (parameters[name] !== undefined && parameters[name] !== "") fields[name] = Number(parameters[name]);
  }
  const stop = (parameters.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) fields.stop = stop;
  if (parameters.reasoning_effort) fields.reasoning_effort = parameters.reasoning_effort;
  if (parameters.tools?.trim()) fields.tools = JSON.parse(parameters.tools);
  return fields;
}

/** Mark answers that ran when the page went away as interrupted. */
export function afterReload(conversation) {
  for (const turn of conversation.turns) {
    for (const answer of turn.answers) {
      if (isRunning(answer)) answer.state = "interrupted";
    }
  }
  return conversation;
}

export function summaryOf(conversation) {
  const { id, updated, models } = conversation;
  return { id, updated, models, title: titleOf(conversation), turns: conversation.turns.length };
}

export function isMatch(conversation, words) {
  const texts = conversation.turns.flatMap((turn) => [turn.text, ...turn.answers.map((answer) => answer.content)]);
  const text = [titleOf(conversation), conversation.system, ...texts].join("\n").toLowerCase();
  return words.every((word) => text.includes(word));
}
