// A button that copies a text, and says so.

import { Icon } from "./icons.js";
import { html, useEffect, useRef, useState } from "./vendor/preact.js";

export function CopyButton({ text, label }) {
  const [result, setResult] = useState("");
  const button = useRef();
  useEffect(() => {
    if (!result) return undefined;
    const timer = setTimeout(() => setResult(""), 1500);
    return () => clearTimeout(timer);
  }, [result]);
  const copy = async () => setResult((await copied(text, button.current)) ? "Copied" : "Copy it by hand");
  return html`<button ref=${button} type="button" class="button quiet copy" aria-label=${label} onClick=${copy}>
    <${Icon} name=${result === "Copied" ? "check" : "copy"} />
    <span role="status">${result || "Copy"}</span>
  </button>`;
}

/** Return true once `text` is on the clipboard; pages over plain HTTP have only the older way. */
async function copied(text, near) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "visually-hidden";
    near.after(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    near.focus();
    return isCopied;
  }
}
