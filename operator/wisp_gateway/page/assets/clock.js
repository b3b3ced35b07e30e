// Seconds that count up on screen while something runs: a hook that renders again, and the time since a moment.

import { useEffect, useState } from "./vendor/preact.js";

/** Render again every `ms` while `isRunning`. */
export function useTick(ms, isRunning) {
  const [, renderAgain] = useState(0);
  useEffect(() => {
    if (!isRunning) return undefined;
    const timer = setInterval(() => renderAgain((count) => count + 1), ms);
    return () => clearInterval(timer);
  }, [ms, isRunning]);
}

/** Seconds since `beganMs` of `performance.now`; 0 if there is none. */
export function secondsSince(beganMs) {
  return beganMs === undefined ? 0 : Math.max(0, (performance.now() - beganMs) / 1000);
}
