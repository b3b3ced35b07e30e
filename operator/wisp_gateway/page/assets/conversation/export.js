// A conversation to take along: as a file (JSON is complete, Markdown to read), and as the request that it would send.
import { bodyOf, titleOf } from "./conversation.js";

export function jsonOf(conversation) {
  return `${JSON.stringify(conversation, null, 2)}\n`;
}

export function markdownOf(conversation) {
  const parts = [`# ${titleOf(conversation)}`];
  if (conversation.system.trim()) parts.push(`> ${conversation.system.trim().replaceAll("\n", "\n> ")}`);
  for (const turn of conversation.turns) {
    if (turn.results)
      parts.push(...turn.results.map((result) => `**Result of ${result.name}**\n\n${fenced(result.content, "")}`));
    else parts.push("**You**", turn.text);
    for (const answer of turn.answers) parts.push(`**${answer.model}**`, ...partsOf(answer));
  }
  return `${parts.join("\n\n")}\n`;
}

function partsOf(answer) {
  const calls = answer.calls.map((call) => fenced(`${call.name}(${call.arguments})`, ""));
  const text = answer.content || (answer.problem ? `*${answer.problem.what}*` : "");
  return [text, ...calls].filter(Boolean);
}

function fenced(text, language) {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), (run) => run[0].length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

/** Offer `text` as a download. */
export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

export function fileNameOf(conversation, suffix) {
  const words = titleOf(conversation)
    .toLowerCase()
    .replace(/[^\p{L}\p{N}]+/gu, "-")
    .replace(/^-+|-+$/g, "");
  return `${words.slice(0, 50) || "conversation"}.${suffix}`;
}

/** Body of the conversation's last request, to be sent by other means; of an empty one, a greeting's. */
export function requestOf(conversation, column) {
  const last = conversation.turns.length - 1;
  const shown = last < 0 ? { ...conversation, turns: [{ text: "Hello", answers: [] }] } : conversation;
  const { stream_options, ...body } = bodyOf(shown, Math.max(last, 0), column);
  return body;
}
