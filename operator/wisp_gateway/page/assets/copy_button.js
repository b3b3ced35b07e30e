// A button that copies a text and then says whether it could.

import { copyText, outcomeOf, SHOWN_MS } from "./browser/clipboard.js";
import { Icon } from "./icons.js";
import { html, useEffect, useState } from "./vendor/preact.js";

/** `label`: name of the button where “Copy” alone would not tell it from others; `style`: its classes. */
export function CopyButton({ text, label, style = "button quiet copy" }) {
  const [result, setResult] = useState("");
  useEffect(() => {
    if (!result) return undefined;
    const timer = setTimeout(() => setResult(""), SHOWN_MS);
    return () => clearTimeout(timer);
  }, [result]);
  const copy = async () => setResult(outcomeOf(await copyText(text)));
  return html`<button type="button" class=${style} aria-label=${label} onClick=${copy}>
    <${Icon} name=${result === "Copied" ? "check" : "copy"} />
    <span role="status">${result || "Copy"}</span>
  </button>`;
}
