// Elements that come near the visible part of the chat: turns far away are shown as plain text until then.
import { useEffect, useRef, useState } from "../vendor/preact.js";

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
