// Every icon of the page: lines on 24 × 24, in the colour of the text beside them, hidden from screen readers.

import { html } from "./vendor/preact.js";

const PATHS = {
  wisp: "M4 7c2 9 4 10 5 10s2.200-7 3-9c.8 2 2 9 3 9s3-1 5-10",
  models: "M12 3 4 7v10l8 4 8-4V7zM4 7l8 4 8-4M12 11v10",
  chat: "M4 5h16v11H10l-4 4v-4H4z",
  live: "M3 12h4l3-8 4 16 3-8h4",
  wakes: "M4 6h9M4 12h16M4 18h6",
  requests: "M4 5h16M4 10h16M4 15h16M4 20h10",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "m5 12 5 5 9-10",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.400 1.400M17.600 17.600 19 19M5 19l1.400-1.400M17.600 6.400 19 5",
  moon: "M20 14.500A8 8 0 0 1 9.500 4a8 8 0 1 0 10.500 10.500z",
  system: "M3 4h18v12H3zM8 20h8M12 16v4",
  alert: "M12 3 2 20h20zM12 10v4M12 17v.5",
  power: "M12 3v8M6.500 7a8 8 0 1 0 11 0",
  stop: "M7 7h10v10H7z",
  key: "M4 16a4 4 0 1 0 8 0 4 4 0 1 0-8 0M11 13l9-9M17 7l3 3M14 10l2 2",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M5 12l7-7 7 7",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M20 11a8 8 0 1 0-2.3 6.3M20 4v7h-7",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  sliders: "M4 7h9M17 7h3M4 17h3M11 17h9M13 4v6M7 14v6",
  menu: "M4 7h16M4 12h16M4 17h16",
  more: "M6 12h.01M12 12h.01M18 12h.01",
  compare: "M4 5h7v14H4zM13 5h7v14h-7z",
  down: "M12 5v14M5 12l7 7 7-7",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false"><path d=${PATHS[name]} /></svg>`;
}
