// Values with listeners, and the hooks by which components follow them.

import { useLayoutEffect, useReducer, useRef } from "./vendor/preact.js";

export function createStore(initial) {
  let value = initial;
  const listeners = new Set();
  return {
    get: () => value,
    set(changes) {
      value = { ...value, ...changes };
      for (const listener of [...listeners]) listener();
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** Return `select(value)`, and render again whenever that changes. */
export function useStore(store, select = (value) => value) {
  const [, renderAgain] = useReducer((count) => count + 1, 0);
  const selected = select(store.get());
  const shown = useRef();
  shown.current = { select, selected };
  useLayoutEffect(() => {
    const check = () => {
      const { select, selected } = shown.current;
      if (!Object.is(select(store.get()), selected)) renderAgain();
    };
    check(); // it may have changed since it was rendered
    return store.subscribe(check);
  }, [store]);
  return selected;
}

/** Render again at each change of `source`, an object with `subscribe`; undefined: never. */
export function useChanges(source) {
  const [, renderAgain] = useReducer((count) => count + 1, 0);
  useLayoutEffect(() => source?.subscribe(renderAgain), [source]); // before any other change can come
}
