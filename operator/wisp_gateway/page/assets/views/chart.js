// A chart over time, drawn by uPlot on a canvas; its caption has the newest values, or those under the cursor.

import { formatTimes, NONE } from "../format.js";
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import uPlot from "../vendor/uplot.js";
import { roofOf } from "./axes.js";

const HEIGHT = 150;
const AXIS_WIDTH = 62;
const LABEL_WIDTH = 68; // a time of day with seconds in a wide font, half of it beyond the last mark

/**
 * `series`: `{ label, hue, x, y }` of equal `x`; `start`, `end`: of the time axis, in Unix seconds; `top`: end of the
 * y axis whatever the values; `steps`: distances between its marks; `empty`: what stands where there are no lines.
 */
export function Chart({ title, series, format, start, end, top, steps, empty = "No data" }) {
  const frame = useRef();
  const [index, setIndex] = useState(null);
  usePlot(frame, { series, format, start, end, top, steps, onIndex: setIndex });
  const shown = series.map((line) => ({ ...line, value: valueAt(line, index) }));
  const summary = shown.map(({ label, value }) => `${label}: ${value === null ? NONE : format(value)}`).join("; ");
  return html`<figure class="card chart">
    <figcaption>
      <h2>${title}</h2>
      <ul class="legend">
        ${shown.map(
          ({ label, hue, value }) => html`<li key=${label}>
            <span class=${`swatch hue-${hue}`} aria-hidden="true"></span>${label}
            <span class="number">${value === null ? NONE : format(value)}</span>
          </li>`,
        )}
      </ul>
    </figcaption>
    <div class="plot" ref=${frame} role="img" aria-label=${`${title}. ${summary || empty}`}></div>
    ${series.length === 0 && html`<p class="no-values muted small">${empty}</p>`}
  </figure>`;
}

function valueAt({ y }, index) {
  if (index !== null && index < y.length) return y[index];
  return y.at(-1) ?? null;
}

/** Keep a plot in `frame`: made anew for other lines or colours, otherwise given the new values. */
function usePlot(frame, { series, format, start, end, top, steps, onIndex }) {
  const plot = useRef(null);
  const [theme, setTheme] = useState(0);
  const lines = series.map(({ label, hue }) => `${label} ${hue}`).join("|");
  useColourChanges(() => setTheme((count) => count + 1));
  useLayoutEffect(() => {
    const element = frame.current;
    const options = optionsOf(element, series, { format, top, steps, onIndex });
    plot.current = new uPlot(options, dataOf(series), element);
    const resizing = new ResizeObserver(() => plot.current.setSize({ width: element.clientWidth, height: HEIGHT }));
    resizing.observe(element);
    return () => {
      resizing.disconnect();
      plot.current.destroy();
    };
  }, [lines, theme]);
  useLayoutEffect(() => {
    plot.current.batch(() => {
      plot.current.setData(dataOf(series), false);
      plot.current.setScale("x", { min: start, max: end });
    });
  });
}

function useColourChanges(onChange) {
  useEffect(() => {
    const system = matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", onChange);
    addEventListener("themechange", onChange);
    return () => {
      system.removeEventListener("change", onChange);
      removeEventListener("themechange", onChange);
    };
  }, []);
}

function dataOf(series) {
  return series.length ? [series[0].x, ...series.map(({ y }) => y)] : [[], []];
}

function optionsOf(element, series, { format, top, steps, onIndex }) {
  const colour = (name) => colourOf(element, name);
  const axis = {
    stroke: colour("--muted"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
  };
  return {
    width: element.clientWidth || 300,
    height: HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: "live", setSeries: false }, y: false, drag: { x: false, y: false }, points: { size: 6 } },
    padding: [8, LABEL_WIDTH / 2, 0, 0],
    scales: { x: { time: true, auto: false }, y: { range: (_, min, max) => [0, top ?? roofOf(max, steps)] } },
    axes: [
      { ...axis, space: LABEL_WIDTH + 10, size: 26, values: (_, times) => formatTimes(times) },
      { ...axis, size: AXIS_WIDTH, space: 34, ...(steps && { incrs: steps }), values: (_, values) => values.map(format) },
    ],
    series: [
      {},
      ...(series.length ? series : [{ hue: 1 }]).map(({ label, hue }) => ({
        label,
        stroke: colour(`--hue-${hue}`),
        width: 1.5,
        points: { show: true, size: 4, filter: lonePoints },
        spanGaps: false,
      })),
    ],
    hooks: { setCursor: [({ cursor }) => onIndex(cursor.idx ?? null)] },
  };
}

/** Indices of values without a neighbour, which a line does not show. */
function lonePoints({ data }, line) {
  const values = data[line];
  const isKnown = (index) => values[index] !== null && values[index] !== undefined;
  return [...values.keys()].filter((index) => isKnown(index) && !isKnown(index - 1) && !isKnown(index + 1));
}

/** A colour of style.css as the canvas understands it: light-dark() resolved for the theme in use. */
function colourOf(element, name) {
  element.style.color = `var(${name})`;
  const { color } = getComputedStyle(element);
  element.style.color = "";
  return color;
}
