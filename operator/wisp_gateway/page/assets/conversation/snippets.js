// A conversation's request as commands to paste: curl, and Python with the official client.
import { bodyOf } from "./conversation.js";

/** Fields that the official client does not name: they go into `extra_body`. */
const EXTENSIONS = new Set(["top_k", "min_p", "repetition_penalty"]);

function requestOf(conversation, column) {
  const last = conversation.turns.length - 1;
  const shown = last < 0 ? { ...conversation, turns: [{ text: "Hello", answers: [] }] } : conversation;
  const { stream_options, ...body } = bodyOf(shown, Math.max(last, 0), column);
  return body;
}

export function curlOf(conversation, column, { origin, hasKey }) {
  const quoted = JSON.stringify(requestOf(conversation, column), null, 2).replaceAll("'", `'\\''`);
  const key = hasKey ? ` \\\n  -H "Authorization: Bearer $WISP_API_KEY"` : "";
  return `curl -N ${origin}/v1/chat/completions \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${quoted}'\n`;
}

export function pythonOf(conversation, column, { origin, hasKey }) {
  const { stream, ...body } = requestOf(conversation, column);
  const extensions = Object.entries(body).filter(([name]) => EXTENSIONS.has(name));
  const fields = Object.entries(body).filter(([name]) => !EXTENSIONS.has(name));
  if (extensions.length) fields.push(["extra_body", Object.fromEntries(extensions)]);
  const lines = [...fields, ["stream", stream]].map(([name, value]) => `    ${name}=${pythonValue(value, 1)},`);
  const key = hasKey ? 'os.environ["WISP_API_KEY"]' : '"none"';
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${pythonValue(`${origin}/v1`)}, api_key=${key})`,
    "stream = client.chat.completions.create(",
    ...lines,
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
    "",
  ].join("\n");
}

function pythonValue(value, depth = 0) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = "    ".repeat(depth + 1);
  const [open, close, items] = Array.isArray(value)
    ? ["[", "]", value.map((item) => pythonValue(item, depth + 1))]
    : ["{", "}", Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${pythonValue(item, depth + 1)}`)];
  const line = open + items.join(", ") + close;
  if (line.length < 80) return line;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${"    ".repeat(depth)}${close}`;
}
