// Copying, also where the browser has no clipboard API (a page over plain HTTP).

export const SHOWN_MS = 1500; // how long a button says what came of it
export const outcomeOf = (isCopied) => (isCopied ? "Copied" : "Couldn’t copy");

/** Copy `text`; return true if the browser did. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyOfSelection(text);
  }
}

function copyOfSelection(text) {
  const area = document.createElement("textarea");
  const focused = document.activeElement;
  area.value = text;
  area.className = "visually-hidden";
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return isCopied;
}

/** Copy the code beside a “Copy” button within Markdown, if one was clicked; elsewhere there is CopyButton. */
export async function onCodeClick(event) {
  const button = event.target.closest?.(".copy-code");
  if (!button || button.disabled) return;
  button.disabled = true;
  button.textContent = outcomeOf(await copyText(button.closest(".code").querySelector("pre").textContent));
  setTimeout(() => {
    button.textContent = "Copy";
    button.disabled = false;
  }, SHOWN_MS);
}
