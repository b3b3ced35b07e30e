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

const NEAR = "1200px 0px";

/** Return `watch(element, callback)`, which calls back once the element comes near the visible part of a scroller. */
export function nearness(rootOf) {
  const callbacks = new WeakMap();
  let observer = null;
  const report = (entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) callbacks.get(target)();
  };
  return (element, callback) => {
    observer ??= new IntersectionObserver(report, { root: rootOf(), rootMargin: NEAR });
    callbacks.set(element, callback);
    observer.observe(element);
    return () => observer.unobserve(element);
  };
}

/** A reference for an element, and true once that has come near. */
export function useNear(isNearAtFirst, whenNear) {
  const element = useRef(null);
  const [isNear, setNear] = useState(isNearAtFirst);
  useEffect(() => (isNear ? undefined : whenNear(element.current, () => setNear(true))), [isNear]);
  return [element, isNear];
}
