// Light, dark, or the system's colours; theme.js applies the choice before the first paint.

import { keptTheme } from "./browser/storage.js";
import { Icon } from "./icons.js";
import { html, useState } from "./vendor/preact.js";

const CHOICES = [
  ["system", "System colours", "system"],
  ["light", "Light", "sun"],
  ["dark", "Dark", "moon"],
];

function choose(choice) {
  const root = document.documentElement;
  if (choice === "system") delete root.dataset.theme;
  else root.dataset.theme = choice;
  keptTheme.set(choice === "system" ? "" : choice);
  dispatchEvent(new Event("themechange")); // canvases read their colours again
}

export function ThemeSwitch() {
  const [current, setCurrent] = useState(document.documentElement.dataset.theme ?? "system");
  const take = (choice) => {
    choose(choice);
    setCurrent(choice);
  };
  return html`<div class="switch" role="group" aria-label="Colours">
    ${CHOICES.map(
      ([choice, label, icon]) => html`<button
        key=${choice}
        type="button"
        title=${label}
        aria-label=${label}
        aria-pressed=${String(choice === current)}
        onClick=${() => take(choice)}
      ><${Icon} name=${icon} /></button>`,
    )}
  </div>`;
}
