// Copying, also where the browser has no clipboard API (a page over plain HTTP).

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

/** Copy and say so on the button for a moment. */
export async function copyFrom(button, text) {
  const label = button.textContent;
  if (button.disabled) return;
  button.disabled = true;
  button.textContent = (await copyText(text)) ? "Copied" : "Not allowed";
  setTimeout(() => {
    button.textContent = label;
    button.disabled = false;
  }, 1200);
}

/** Copy the code beside a “Copy” button of a code block, if one was clicked. */
export function onCodeClick(event) {
  const button = event.target.closest?.(".copy-code");
  if (button) copyFrom(button, button.closest(".code").querySelector("pre").textContent);
}
