// Hooks of the chat's components.
import { useEffect, useReducer, useRef, useState } from "../vendor/preact.js";

/** Show the component again whenever `store` reports a change. */
export function useChanges(store) {
  const [, again] = useReducer((count) => count + 1, 0);
  useEffect(() => store?.subscribe(again), [store]);
}

/** Seconds since `beganMs` (of `performance.now`), counted five times a second. */
export function useSeconds(beganMs) {
  const [now, setNow] = useState(performance.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(performance.now()), 200);
    return () => clearInterval(timer);
  }, [beganMs]);
  return Math.max(0, (now - beganMs) / 1000);
}

/** True once the element has come near the visible part of the page. */
export function useNear(isNearAtFirst) {
  const element = useRef(null);
  const [isNear, setNear] = useState(isNearAtFirst);
  useEffect(() => {
    if (isNear || !element.current) return undefined;
    const observer = new IntersectionObserver(
      (entries) => entries.some((entry) => entry.isIntersecting) && setNear(true),
      { rootMargin: "1200px" },
    );
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [isNear]);
  return [element, isNear];
}
