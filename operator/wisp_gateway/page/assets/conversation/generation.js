// Runs one answer: sends the request, reads its stream, and reports changes at most once a frame.
import { ApiError, request } from "../api.js";
import { readEvents } from "../sse.js";
import { addChunk, setRates } from "./answer.js";
import { problemOfConnection, problemOfError, problemOfRefusal } from "./problem.js";

const MAX_PAUSE_MS = 250;
const CHARACTERS_PER_PAUSE_MS = 200; // of an answer: long ones take longer to lay out

/**
 * One request and the answer it fills.
 *
 * `wake` is the phase that heartbeats of a held request report ("weights 62 %"), empty otherwise.
 */
export class Generation {
  #abort = new AbortController();
  #listeners = new Set();
  #pending = 0;
  #wasStopped = false;
  #times = { sentMs: performance.now(), firstMs: null, lastMs: null };
  #reportedMs = 0;
  wake = "";

  constructor(answer) {
    this.answer = answer;
    this.beganMs = this.#times.sentMs;
  }

  subscribe(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  stop() {
    this.#wasStopped = true;
    this.#abort.abort();
  }

  /** Run until the answer has ended, in whatever way; never throws. */
  async run(body) {
    try {
      await this.#read(await request("v1/chat/completions", { body, signal: this.#abort.signal }));
    } catch (error) {
      this.#end(error);
    }
    setRates(this.answer, this.#times);
    this.#report();
  }

  async #read(response) {
    for await (const event of readEvents(response)) {
      if (event.comment !== undefined) this.#heartbeat(event.comment);
      else if (event.data === "[DONE]") this.#done(); // read on: the gateway counts a client that leaves now as gone
      else if (!this.#chunk(JSON.parse(event.data), response)) return;
    }
    if (this.answer.state !== "done") throw new TypeError("the stream ended early");
  }

  #heartbeat(comment) {
    this.wake = /^waking\s+(.*)/.exec(comment)?.[1] ?? this.wake;
    this.answer.hasWoken ||= Boolean(this.wake);
    this.#change();
  }

  #chunk(chunk, response) {
    if (chunk.error) {
      const requestId = response.headers.get("x-request-id") ?? "";
      this.#fail(problemOfError(chunk.error, { model: this.answer.model, requestId }));
      return false;
    }
    if (addChunk(this.answer, chunk)) this.#token();
    this.#change();
    return true;
  }

  #token() {
    const now = performance.now();
    const { answer } = this;
    this.#times.firstMs ??= now;
    this.#times.lastMs = now;
    answer.state = "answering";
    this.wake = "";
    if (answer.reasoning && answer.content && answer.thinkingSeconds === null) {
      answer.thinkingSeconds = (now - this.#times.firstMs) / 1000;
    }
  }

  #done() {
    this.answer.state = "done";
  }

  #fail(problem) {
    const { answer } = this;
    answer.problem = problem;
    answer.state = answer.content || answer.reasoning || answer.calls.length ? "interrupted" : "failed";
  }

  #end(error) {
    if (this.answer.state === "done") return;
    if (this.#wasStopped) this.answer.state = "stopped";
    else if (error instanceof ApiError) this.#fail(problemOfRefusal(error, this.answer.model));
    else if (error instanceof SyntaxError)
      this.#fail(problemOfError({ message: "An event of the answer is not JSON." }));
    else this.#fail(problemOfConnection(this.#times.firstMs !== null));
  }

  /** Report soon: once a frame, less often for long answers. */
  #change() {
    if (this.#pending) return;
    const { content, reasoning } = this.answer;
    const wanted = Math.min(MAX_PAUSE_MS, (content.length + reasoning.length) / CHARACTERS_PER_PAUSE_MS);
    const pause = wanted - (performance.now() - this.#reportedMs);
    const report = () => {
      this.#pending = requestAnimationFrame(() => this.#report());
    };
    if (pause > 16) this.#pending = setTimeout(report, pause);
    else report();
  }

  #report() {
    this.#pending = 0;
    this.#reportedMs = performance.now();
    for (const listener of this.#listeners) listener();
  }
}
