// Icons as strokes of the text's colour, hidden from screen readers.
import { html } from "../vendor/preact.js";

const PATHS = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M5 12l7-7 7 7",
  stop: "M7 7h10v10H7z",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M20 11a8 8 0 1 0-2.3 6.3M20 4v7h-7",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  on: "M5 12h14M13 6l6 6-6 6",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  sliders: "M4 7h9M17 7h3M4 17h3M11 17h9M13 4v6M7 14v6",
  menu: "M4 7h16M4 12h16M4 17h16",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  compare: "M4 5h7v14H4zM13 5h7v14h-7z",
  down: "M12 5v14M5 12l7 7 7-7",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
    <path d=${PATHS[name]} />
  </svg>`;
}
