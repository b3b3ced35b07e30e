// Counts, rates, sizes, durations and times as texts: one function for each, for every view.

const count = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const NONE = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function formatCount(value) {
  return isNumber(value) ? count.format(value) : NONE;
}

/** 41.5, 7.25 … 1,240: three digits that matter. */
export function formatRate(value) {
  if (!isNumber(value)) return NONE;
  return value >= 100 ? count.format(value) : value.toFixed(value >= 10 || value === 0 ? 1 : 2).replace(/\.0+$/, "");
}

export function formatBytes(value) {
  if (!isNumber(value)) return NONE;
  let size = value;
  let unit = 0;
  while (size >= 1024 && unit < 4) {
    size /= 1024;
    unit += 1;
  }
  return `${size >= 100 || unit === 0 ? size.toFixed(0) : size.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

/** 1.6 of 18.9 GiB, 512 MiB of 2.0 GiB. */
export function formatBytesOf(part, total) {
  const [whole, unit] = formatBytes(total).split(" ");
  const [size, own] = formatBytes(part).split(" ");
  return own === unit ? `${size} of ${whole} ${unit}` : `${size} ${own} of ${whole} ${unit}`;
}

/** 4.3 ms, 340 ms, 2.1 s, 1 min 5 s, 2 h 3 min. */
export function formatSeconds(value) {
  if (!isNumber(value)) return NONE;
  if (value < 0.00005) return "0 s";
  if (value < 0.01) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${Number.isInteger(value) ? value : value.toFixed(value < 10 ? 2 : 1)} s`;
  const seconds = Math.round(value);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** Seconds of something that runs: they tick in tenths, and do not change their width. */
export function formatRunning(value) {
  return value < 60 ? `${value.toFixed(1)} s` : formatSeconds(value);
}

export function formatShare(value) {
  return isNumber(value) ? `${(value * 100).toFixed(value < 0.1 && value > 0 ? 1 : 0)}%` : NONE;
}

/** Share of something that runs: 100% only once all of it is done. */
export function formatProgress(value) {
  return isNumber(value) ? `${Math.floor(value * 100)}%` : NONE;
}

/** The time of day, and before it the day if that is not today. */
export function formatMoment(unixSeconds) {
  if (!isNumber(unixSeconds)) return NONE;
  const date = new Date(unixSeconds * 1000);
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? clock.format(date) : `${day.format(date)}, ${clock.format(date)}`;
}

/** Times of day along an axis, with seconds where marks lie within minutes. */
export function formatTimes(unixSeconds) {
  const format = unixSeconds.every((time) => time % 60 === 0) ? minute : clock;
  return unixSeconds.map((time) => format.format(time * 1000));
}
