"""Run the engine's own loop on scripted requests, and record the time of each step's tokens.

The timed code is :func:`wisp_runtime.engine.loop.run` itself, as it serves: planning, packing, the step,
sampling, committing, pickling the messages to the server. Only the pipe and the server are missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from wisp_runtime.engine import loop
from wisp_runtime.engine.execution.runner import Runner
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import Shutdown, StepOutput, Submit
from wisp_runtime.engine.transport.wire import encode
from wisp_runtime.errors import EngineFailed


@dataclass(frozen=True, slots=True)
class Output:
    """Output of a step: time, number of tokens, number of cached prompt tokens."""

    at_s: float
    tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Round:
    """Requests sent together to an idle engine, and its outputs until it was idle again."""

    began_s: float
    outputs: tuple[Output, ...]

    @property
    def first_token_s(self) -> float:
        """Seconds until the first token of any sequence."""
        return next(output.at_s for output in self.outputs if output.tokens) - self.began_s

    @property
    def seconds(self) -> float:
        """Seconds until the last token of all sequences."""
        return self.outputs[-1].at_s - self.began_s

    def steps_ms(self, batch: int, skip: int) -> list[float]:
        """Return the milliseconds between full decode steps: those with ``batch`` tokens.

        Args:
            batch: number of decoding sequences.
            skip: number of full steps to leave out at the beginning.
        """
        full = [output.at_s for output in self.outputs if output.tokens == batch]
        return [1e3 * (after - before) for before, after in zip(full[skip:], full[skip + 1 :], strict=False)]


Script = Generator[list[Submit], Round, None]
"""Generator of requests; receives their :class:`Round` once the engine is idle again."""


OnOutput = Callable[[int], None]


class ScriptedChannel:
    """Channel of the engine to a scripted server.

    Args:
        script: the requests.
        clock: seconds.
        on_output: called with the number of a round's outputs, at each of them.
    """

    def __init__(
        self,
        script: Script,
        clock: Callable[[], float] = time.perf_counter,
        on_output: OnOutput = lambda _: None,
    ) -> None:
        self._script, self._clock, self._on_output = script, clock, on_output
        self._outputs: list[Output] | None = None
        self._began_s = 0.0

    def send(self, message: Any) -> None:
        """Pickle a message as for the pipe, and record the time."""
        assert isinstance(message, StepOutput)
        encode(message)
        failed = next((event for event in message.events if event.finish in ("error", "refused")), None)
        if failed is not None:
            raise EngineFailed(f"a request of the benchmark failed: {failed.message}")
        assert self._outputs is not None
        tokens = sum(event.token is not None for event in message.events)
        cached = sum(event.cached_tokens for event in message.events)
        self._outputs.append(Output(self._clock(), tokens, cached))
        self._on_output(len(self._outputs))

    def receive(self, *, waits: bool) -> list[Any]:
        """Return nothing while the engine is busy; when it is idle, the script's next requests."""
        if not waits:
            return []
        try:
            if self._outputs is None:
                requests = next(self._script)
            else:
                requests = self._script.send(Round(self._began_s, tuple(self._outputs)))
        except StopIteration:
            return [Shutdown()]
        self._outputs = []
        self._began_s = self._clock()
        return list(requests)


def run_script(
    script: Script, scheduler: Scheduler, runner: Runner, on_output: OnOutput = lambda _: None
) -> None:
    """Run ``script`` to its end.

    Args:
        on_output: argument of :class:`ScriptedChannel`.

    Raises:
        EngineFailed: a request was refused or failed.
    """
    loop.run(ScriptedChannel(script, on_output=on_output), scheduler, runner)


def requests_of(
    prompts: Sequence[tuple[int, ...]], max_tokens: int, name: str, **sampling: Any
) -> list[Submit]:
    """Make a request of each prompt that generates exactly ``max_tokens`` tokens.

    Args:
        prompts: token ids of each request.
        max_tokens: tokens to generate; an end-of-sequence token does not end the sequence.
        name: prefix of the request ids, not used before.
        sampling: fields of :class:`~wisp_runtime.engine.transport.messages.SamplingParams`.
    """
    from wisp_runtime.engine.transport.messages import SamplingParams

    params = SamplingParams(**sampling)
    return [
        Submit(f"{name}-{number}", prompt, max_tokens, params, ignore_eos=True)
        for number, prompt in enumerate(prompts)
    ]
