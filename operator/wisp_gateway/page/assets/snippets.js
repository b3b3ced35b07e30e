// Texts to paste: a request as curl and in Python with the official client, and a model's resource. Pure.

/** Fields that the official client does not name: they go into `extra_body`. */
const EXTENSIONS = new Set(["top_k", "min_p", "repetition_penalty", "add_generation_prompt", "continue_final_message"]);
const MAX_LINE = 80;

const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** `address`: of the API, up to `/v1`; `hasKey`: whether a request needs the variable WISP_API_KEY. */
export function curlOf(body, { address, hasKey }) {
  const lines = [
    `curl -N ${shell(`${address}/chat/completions`)}`,
    ...(hasKey ? ['-H "Authorization: Bearer $WISP_API_KEY"'] : []),
    "-H 'Content-Type: application/json'",
    `-d ${shell(JSON.stringify(body, null, 2))}`,
  ];
  return `${lines.join(" \\\n  ")}\n`;
}

export function pythonOf(body, { address, hasKey }) {
  const isExtension = ([name]) => EXTENSIONS.has(name);
  const fields = Object.entries(body).filter((field) => !isExtension(field));
  const extensions = Object.entries(body).filter(isExtension);
  if (extensions.length) fields.splice(-1, 0, ["extra_body", Object.fromEntries(extensions)]);
  const key = hasKey ? 'os.environ["WISP_API_KEY"]' : '"none"';
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    "client = OpenAI(",
    `    base_url=${pythonValue(address)},`,
    `    api_key=${key},`,
    ")",
    "stream = client.chat.completions.create(",
    ...fields.map(([name, value]) => `    ${name}=${pythonValue(value, 1)},`),
    ")",
    "for chunk in stream:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
    "",
  ].join("\n");
}

/** A JSON value as Python writes it, on one line if that is short. */
function pythonValue(value, depth = 0) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = "    ".repeat(depth + 1);
  const [open, close, items] = Array.isArray(value)
    ? ["[", "]", value.map((item) => pythonValue(item, depth + 1))]
    : ["{", "}", Object.entries(value).map(([key, item]) => `${JSON.stringify(key)}: ${pythonValue(item, depth + 1)}`)];
  const line = open + items.join(", ") + close;
  if (line.length < MAX_LINE) return line;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${"    ".repeat(depth)}${close}`;
}

/** The resource as far as the gateway knows it: enough to make the model elsewhere. */
export function yamlOf({ name, namespace, servedName, uri, gpus }) {
  const names = servedName && servedName !== name ? `\n    servedName: ${JSON.stringify(servedName)}` : "";
  return `apiVersion: wisp.dev/v1alpha1
kind: InferenceModel
metadata:
  name: ${name}
  namespace: ${namespace}
spec:
  model:
    uri: ${JSON.stringify(uri ?? "")}${names}
  gpu:
    count: ${gpus ?? 1}
`;
}
