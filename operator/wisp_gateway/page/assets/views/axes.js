// Marks and ends of a chart's y axis. Pure.

/** Distances between marks of counts: none lies between two whole numbers. */
export const WHOLE_NUMBERS = [1, 10, 100, 1_000].flatMap((unit) => [unit, 2 * unit, 5 * unit]);

/** Distances between marks of bytes. */
export const POWERS_OF_TWO = Array.from({ length: 32 }, (_, place) => 2 ** (place + 14));

/** End of an axis whose largest value is `max`: a tenth above it, and with `steps` one of them at least. */
export function roofOf(max, steps) {
  const least = steps?.[0] ?? 0;
  return Math.max(max > 0 ? max * 1.1 : 0, least) || 1;
}
