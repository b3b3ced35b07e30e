// Texts to copy: a request as curl and in Python, and the resource.

import { access } from "../api.js";
import { CopyButton } from "../copy_button.js";
import { useStore } from "../store.js";
import { html, useState } from "../vendor/preact.js";

const quoted = (text) => JSON.stringify(text);
const shell = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** The model's own address here: as this browser reaches the gateway, so that the text works where it is copied. */
function addressOf(model) {
  return new URL(`${model.namespace}/${model.name}/v1`, location.href.split("#")[0]).href;
}

function curlOf(model, hasKey) {
  const body = { model: model.servedName || model.name, messages: [{ role: "user", content: "Hello" }], stream: true };
  const lines = [
    `curl -N ${shell(`${addressOf(model)}/chat/completions`)}`,
    ...(hasKey ? ['-H "authorization: Bearer $WISP_API_KEY"'] : []),
    "-H 'content-type: application/json'",
    `-d ${shell(JSON.stringify(body))}`,
  ];
  return lines.join(" \\\n  ");
}

function pythonOf(model, hasKey) {
  return `${hasKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(
    base_url=${quoted(addressOf(model))},
    api_key=${hasKey ? 'os.environ["WISP_API_KEY"]' : '"none"'},
)
stream = client.chat.completions.create(
    model=${quoted(model.servedName || model.name)},
    messages=[{"role": "user", "content": "Hello"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

/** The resource as far as the gateway knows it: enough to make the model elsewhere. */
function yamlOf(model) {
  const names = model.servedName && model.servedName !== model.name ? `\n    servedName: ${quoted(model.servedName)}` : "";
  return `apiVersion: wisp.dev/v1alpha1
kind: InferenceModel
metadata:
  name: ${model.name}
  namespace: ${model.namespace}
spec:
  model:
    uri: ${quoted(model.uri ?? "")}${names}
  gpu:
    count: ${model.gpus ?? 1}
`;
}

const KINDS = [
  ["curl", curlOf],
  ["Python", pythonOf],
  ["YAML", yamlOf],
];

export function Snippets({ model }) {
  const [kind, setKind] = useState("curl");
  const hasKey = useStore(access, ({ key }) => key !== "");
  const text = KINDS.find(([name]) => name === kind)[1](model, hasKey);
  return html`<details class="snippets">
    <summary>Use it from code</summary>
    <div class="snippet-bar">
      <div class="switch words" role="group" aria-label="Language">
        ${KINDS.map(
          ([name]) => html`<button
            key=${name}
            type="button"
            aria-pressed=${String(name === kind)}
            onClick=${() => setKind(name)}
          >${name}</button>`,
        )}
      </div>
      <${CopyButton} text=${text} label=${`Copy the ${kind} of ${model.name}`} />
    </div>
    <pre tabindex="0" aria-label=${`${kind} of ${model.name}`}><code>${text}</code></pre>
  </details>`;
}
