// A button that copies a text, and says so.

import { Icon } from "./icons.js";
import { copyText } from "./markdown/clipboard.js";
import { html, useEffect, useState } from "./vendor/preact.js";

export function CopyButton({ text, label }) {
  const [result, setResult] = useState("");
  useEffect(() => {
    if (!result) return undefined;
    const timer = setTimeout(() => setResult(""), 1500);
    return () => clearTimeout(timer);
  }, [result]);
  const copy = async () => setResult((await copyText(text)) ? "Copied" : "Copy it by hand");
  return html`<button type="button" class="button quiet copy" aria-label=${label} onClick=${copy}>
    <${Icon} name=${result === "Copied" ? "check" : "copy"} />
    <span role="status">${result || "Copy"}</span>
  </button>`;
}
