"""Run plans on a GPU: launch a step and return, so that the next can be prepared while it runs.

A step that only decodes is rounded up to a bucket and replayed as a graph; every other step is launched
kernel by kernel. Nothing is allocated on the device once :meth:`DeviceRunner.warm_up` is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from wisp_runtime.batch import Array, Sampled
from wisp_runtime.engine.cache.blocks import blocks_for
from wisp_runtime.engine.execution.batch_buckets import buckets
from wisp_runtime.engine.execution.graphs import Graphs
from wisp_runtime.engine.execution.sampler import draws
from wisp_runtime.engine.execution.staging import Parameters, SampledArrays, Staged, Staging
from wisp_runtime.engine.execution.stream import Lane, Mark
from wisp_runtime.engine.scheduling.plan import Chunk, Draw, Limits, Plan
from wisp_runtime.engine.scheduling.sequence import Sequence
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.layers.cache import KVCache
from wisp_runtime.models.model import Model
from wisp_runtime.ops.cuda.device.driver import translate


class Sampler(Parameters, Protocol):
    """Draws tokens on the device; they stay where the embedding of the next step finds them."""

    def reserve(self) -> None:
        """Allocate all that any launch needs."""
        ...

    def launch(
        self, logits: Array, rows: int, parameters: Array, *, logprobs: int, greedy: bool
    ) -> SampledArrays:
        """Choose a token for each of ``rows`` rows that counts; see :class:`.staging.Staged`."""
        ...


@dataclass(frozen=True, slots=True)
class Pending:
    """A step that was launched."""

    plan: Plan
    done: Mark
    found: tuple[Sampled, Array] | None  # on the host once the step is done

    def draws(self) -> list[Draw]:
        """Wait for the step; return one draw per chunk that samples, in the plan's order.

        Raises:
            RuntimeFailure: this step, or one before, failed on the device.
        """
        with translate("running a step"):
            self.done.wait()
        if self.found is None:
            return []
        sampled, is_sound = self.found
        return draws(self.plan, sampled, is_sound.tolist())


class DeviceRunner:
    """A model that runs plans on a device.

    Args:
        model: computes logits.
        cache: where it keeps keys and values.
        sampler: draws tokens from them.
        lane: the stream on which all of these run.
        limits: of a step.
    """

    overlaps = True

    def __init__(self, model: Model, cache: KVCache, sampler: Sampler, lane: Lane, limits: Limits) -> None:
        self.model, self.cache = model, cache
        self.graphs: Graphs[SampledArrays] = Graphs(lane)
        self._sampler, self._lane, self._limits = sampler, lane, limits
        with translate("allocating a step's inputs"):
            self._staging = Staging(lane, limits, sampler)

    def launch(self, plan: Plan) -> Pending:
        """Begin to compute the chunks of ``plan``, once the step before the last is done.

        The draws of that one must have been taken: its results are overwritten.

        Raises:
            RuntimeFailure: the device refused, or an earlier step failed.
        """
        with translate("launching a step"):
            whole = self.model.whole_step
            step = self._staging.stage(plan, whole.max_context_tokens if whole else None)
            found = None
            if step.bucket is not None:
                key = (step.bucket, step.is_long, step.logprobs, step.greedy)
                sampled = self.graphs.run(key, lambda: self._sample(step))
                found = self._staging.fetch(step, sampled)
            elif step.live:
                found = self._staging.fetch(step, self._sample(step))
            else:
                self.model.forward(step.batch, self.cache)
            step.half.done.set()
        return Pending(plan, step.half.done, found)

    def warm_up(self) -> None:
        """Run the largest step and each bucket: what is allocated or loaded on first use is then there.

        Overwrites blocks of the cache, so it is for before the first request. From here on graphs are
        recorded, so memory that steps use must not move any more.
        """
        self._sampler.reserve()
        for plan in warm_plans(self._limits):
            self.launch(plan).draws()
        self.graphs.records = True

    def _sample(self, step: Staged) -> SampledArrays:
        logits = self.model.forward(step.batch, self.cache)
        return self._sampler.launch(
            logits, step.rows, step.parameters, logprobs=step.logprobs, greedy=step.greedy
        )


def device_runner(model: Model, cache: KVCache, ops: Any, limits: Limits) -> DeviceRunner:
    """Return a runner on the stream of ``ops.device_state``, with a sampler for the model's vocabulary."""
    from wisp_runtime.engine.execution.cuda_stream import Stream  # CuPy: only where there is a GPU

    sampler = ops.make_sampler(limits.vocab, limits.max_running)
    return DeviceRunner(model, cache, sampler, Stream(ops.device_state.stream), limits)


def warm_plans(limits: Limits) -> Iterator[Plan]:
    """Yield a plan with the most tokens, sequences and reported log-probabilities, and one of each bucket."""
    longest = min(limits.max_context - 1, limits.blocks * limits.block_tokens)
    counts, spare = [], limits.max_step_tokens - limits.max_running
    for _ in range(limits.max_running):
        counts.append(min(1 + spare, longest))
        spare -= counts[-1] - 1
    yield tuple(_warm_chunk(limits, tokens, logprobs=0) for tokens in counts)
    for bucket in reversed(buckets(limits.max_running)):
        yield tuple(_warm_chunk(limits, 1, decodes=limits.keeps_apart) for _ in range(bucket))


def _warm_chunk(limits: Limits, tokens: int, logprobs: int | None = None, *, decodes: bool = False) -> Chunk:
    """Return a chunk that computes a prompt; or, with ``decodes``, the token after such a prompt."""
    request = Submit("warm-up", (0,) * tokens, 2, SamplingParams(logprobs=logprobs))
    sequence = Sequence(request, rank=(0, 0), max_length=tokens + 2, eos=frozenset())
    sequence.blocks.extend(range(blocks_for(tokens + decodes, limits.block_tokens)))
    if decodes:
        sequence.tokens.append(0)
    return Chunk(sequence, tokens if decodes else 0, 1 if decodes else tokens, samples=True)
