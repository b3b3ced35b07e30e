// The part of a model's card with texts to copy: a request as curl and in Python, and the model's YAML.

import { access } from "../api.js";
import { CopyButton } from "../copy_button.js";
import { curlOf, pythonOf, yamlOf } from "../snippets.js";
import { useStore } from "../store.js";
import { html, useState } from "../vendor/preact.js";

const KINDS = ["curl", "Python", "YAML"];

function textOf(kind, model, hasKey) {
  if (kind === "YAML") return yamlOf(model);
  const body = { model: model.servedName || model.name, messages: [{ role: "user", content: "Hello" }], stream: true };
  return (kind === "curl" ? curlOf : pythonOf)(body, { address: addressOf(model), hasKey });
}

/** The model's own address here: as this browser reaches the gateway, so that the text works where it is copied. */
function addressOf(model) {
  return new URL(`${model.namespace}/${model.name}/v1`, location.href.split("#")[0]).href;
}

export function CodeExamples({ model, isLocked }) {
  const [kind, setKind] = useState("curl");
  const hasKey = useStore(access, ({ key }) => key !== "") || isLocked;
  const text = textOf(kind, model, hasKey);
  return html`<details class="snippets">
    <summary>Use it from code</summary>
    <div class="snippet-bar">
      <div class="switch words" role="group" aria-label="Language">
        ${KINDS.map(
          (name) => html`<button
            key=${name}
            type="button"
            aria-pressed=${String(name === kind)}
            onClick=${() => setKind(name)}
          >${name}</button>`,
        )}
      </div>
      <${CopyButton} text=${text} label=${`Copy the ${kind} for ${model.name}`} />
    </div>
    <pre tabindex="0" aria-label=${`${kind} for ${model.name}`}><code>${text}</code></pre>
  </details>`;
}
