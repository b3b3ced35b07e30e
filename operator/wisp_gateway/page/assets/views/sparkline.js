// A small line chart without axes: one model's answer tokens a second over the last two minutes.

import { html } from "../vendor/preact.js";

const SECONDS = 120;
const WIDTH = 240;
const HEIGHT = 32;

export function Sparkline({ samples, of }) {
  const end = samples.at(-1)?.t ?? 0;
  const points = samples
    .filter(({ t }) => t > end - SECONDS)
    .map(({ t, models }) => [((t - end) / SECONDS + 1) * WIDTH, models?.[of]?.out ?? 0]);
  const top = Math.max(...points.map(([, rate]) => rate), 0);
  if (points.length < 2 || top === 0) return html`<div class="sparkline" aria-hidden="true"></div>`;
  const line = points.map(([x, rate]) => `${x.toFixed(1)},${(HEIGHT - 2 - (rate / top) * (HEIGHT - 4)).toFixed(1)}`);
  return html`<svg class="sparkline" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
    <polyline points=${line.join(" ")} />
  </svg>`;
}
