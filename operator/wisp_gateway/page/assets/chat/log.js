// The turns of the open conversation; it stays at its end while answers grow, unless the user scrolls away.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { nearness } from "./nearness.js";
import { Icon } from "../icons.js";
import { Turn } from "./turn.js";

const NEAR_END = 12; // turns shown as Markdown at once; earlier ones when they come near
const SLACK_PX = 60;

export function Log({ session, modelOf }) {
  const { turns } = session.conversation;
  const isCompared = turns.some((turn) => turn.answers.length > 1);
  const scroller = useRef(null);
  const list = useRef(null);
  const isPinned = useRef(true);
  const [isAway, setAway] = useState(false);
  const toEnd = () => {
    scroller.current.scrollTop = scroller.current.scrollHeight;
  };
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = scroller.current;
    isPinned.current = scrollHeight - scrollTop - clientHeight < SLACK_PX;
    setAway(!isPinned.current);
  };
  useLayoutEffect(() => {
    isPinned.current = true;
    toEnd();
  }, [turns.length]);
  const whenNear = useMemo(() => nearness(() => scroller.current), []);
  useEffect(() => {
    const observer = new ResizeObserver(() => isPinned.current && toEnd());
    observer.observe(list.current);
    return () => observer.disconnect();
  }, []);
  return html`<div
    class="chat-log"
    ref=${scroller}
    onScroll=${onScroll}
    tabindex="0"
    role="region"
    aria-label="Messages"
  >
    <ol class=${isCompared ? "chat-turns is-wide" : "chat-turns"} ref=${list}>
      ${turns.map(
        (turn, index) =>
          html`<${Kept}
            key=${turn.id}
            turn=${turn}
            index=${index}
            session=${session}
            modelOf=${modelOf}
            isLast=${index === turns.length - 1}
            isNearEnd=${index >= turns.length - NEAR_END}
            whenNear=${whenNear}
          />`,
      )}
    </ol>
    ${isAway && html`<button type="button" class="chat-to-end" aria-label="Jump to the newest message" onClick=${toEnd}><${Icon} name="down" /></button>`}
  </div>`;
}

/** A turn that is rendered again only if something of it changed. */
function Kept({ turn, index, session, modelOf, isLast, isNearEnd, whenNear }) {
  const states = turn.answers.map((answer) => `${answer.state} ${modelStateOf(modelOf(answer.model), answer)}`).join();
  return useMemo(
    () =>
      html`<${Turn}
        turn=${turn}
        index=${index}
        session=${session}
        modelOf=${modelOf}
        isLast=${isLast}
        isNearEnd=${isNearEnd}
        whenNear=${whenNear}
      />`,
    [turn, index, isLast, states],
  );
}

/** What a waiting answer shows of its model; nothing of the others'. */
function modelStateOf(model, answer) {
  return answer.state === "waiting" ? JSON.stringify(model ?? null) : "";
}
