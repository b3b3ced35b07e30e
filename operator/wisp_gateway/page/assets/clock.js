// The seconds since a document came, for numbers that tick while something runs.

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

export function secondsSince(receivedMs) {
  return receivedMs === undefined ? 0 : Math.max(0, (performance.now() - receivedMs) / 1000);
}
