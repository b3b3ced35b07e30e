"""Run plans on a GPU: launch a step and return, so that the next can be prepared while it runs.

A step that only decodes is rounded up to a bucket and replayed as a graph; every other step is launched
kernel by kernel. Forward pass and sampling are launched together, in one graph, unless a row's sampling
parameters count a token that is awaited: then the graph is that of the forward pass alone, and the sampler's
kernels follow once the parameters are known. Nothing is allocated on the device once
:meth:`DeviceRunner.warm_up` is over.

Why forward pass n + 1 may be launched while the tokens of step n are unknown:

1. All launches and copies are on one stream. The order is: inputs n, forward n, parameters n, sampling n,
   results n, inputs n + 1, … (parameters go with the inputs where they are known).
2. Forward n + 1 looks up the tokens of sampling n on the device, and sampling n + 1, which overwrites them,
   comes after. It is launched after the host has committed step n, and before forward n + 2
   (:class:`DeviceRunner` asserts).
3. Logits lie in one place: sampling n has read them before forward n + 1 writes them.
4. A sequence that ends, is aborted or is preempted in between changes nothing that was launched: its row is
   sampled with the parameters it had, and the token is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from wisp_plan.memory.batch_buckets import buckets
from wisp_runtime.batch import Array, Sampled
from wisp_runtime.engine.cache.sequence_cache import scratch_cache
from wisp_runtime.engine.execution.forward import ForwardPass
from wisp_runtime.engine.execution.graph_cache import GraphCache
from wisp_runtime.engine.execution.pooling import PooledResults, Vectors, with_vectors
from wisp_runtime.engine.execution.runner import run_step
from wisp_runtime.engine.execution.sampler import tokens_of
from wisp_runtime.engine.execution.staging import StagedSampling, StagedStep, Staging
from wisp_runtime.engine.scheduling.plan import Chunk, Limits, Plan, SampledToken
from wisp_runtime.engine.scheduling.sequence import Sequence
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.layers.cache import ModelCache
from wisp_runtime.models.model import Model, Output
from wisp_runtime.ops.protocol.sampling import SampledArrays, Sampler
from wisp_runtime.ops.protocol.stream import Event, Stream


@dataclass(slots=True)
class DeviceStep:
    """A step whose forward pass was launched; see :class:`.runner.LaunchedStep`.

    Attributes:
        plan: its chunks.
        stream: stream of the device.
        done: event behind its results.
        results: tokens and their soundness, on the host once the step is done; None if it samples nothing.
        launch_sampling: call that :meth:`sample` has yet to make; None if sampling was launched.
        vectors: vectors of prompts that are pooled, on the host once the step is done.
    """

    plan: Plan
    stream: Stream
    done: Event
    results: tuple[Sampled, Array] | None = None
    launch_sampling: Callable[[], tuple[Sampled, Array]] | None = None
    vectors: Vectors = field(default_factory=list)

    def sample(self) -> None:
        """Launch the sampling of the tokens, unless it was launched with the forward pass.

        Raises:
            RuntimeFailure: the device refused, or an earlier step failed.
        """
        if self.launch_sampling is not None:
            with self.stream.translate_errors("launching the sampling of a step"):
                self.results, self.launch_sampling = self.launch_sampling(), None
                self.done.record()

    def sampled_tokens(self) -> list[SampledToken]:
        """Wait for the step; return one token per chunk with logits, in the plan's order.

        Raises:
            RuntimeFailure: this step, or one before, failed on the device.
        """
        assert self.launch_sampling is None, "a step is sampled before its tokens are taken"
        with self.stream.translate_errors("running a step"):
            self.done.synchronize()
        if self.results is None:
            return []
        sampled, is_sound = self.results
        return with_vectors(tokens_of(self.plan, sampled, is_sound.tolist()), self.vectors)


class DeviceRunner:
    """A model that runs plans on a device.

    Args:
        model: model on the device.
        cache: caches of its layers.
        sampler: sampler of tokens from its logits.
        stream: stream of the device, on which all of these run.
        limits: bounds of a step.

    Attributes:
        before_step: called before a step is staged; it may change the limits of the persistent kernel.
    """

    overlaps = True

    def __init__(
        self, model: Model, cache: ModelCache, sampler: Sampler, stream: Stream, limits: Limits
    ) -> None:
        self.forward_pass = ForwardPass(model, cache)
        self.graphs = GraphCache(stream)
        self._sampler, self._stream, self._limits = sampler, stream, limits
        with stream.translate_errors("allocating a step's inputs"):
            self._staging = Staging(stream, limits, sampler)
            self._pooled = PooledResults(stream, limits.max_running, model.spec.hidden)
        self._last: DeviceStep | None = None
        self.before_step: Callable[[], None] = lambda: None

    def forward(self, plan: Plan) -> DeviceStep:
        """Launch the forward pass of ``plan``, once the step before the last is done.

        The tokens of that one must have been taken: its results are overwritten.

        Raises:
            RuntimeFailure: the device refused, or an earlier step failed.
        """
        assert self._last is None or self._last.launch_sampling is None, "the step before is not sampled yet"
        with self._stream.translate_errors("launching a step"):
            self.before_step()
            persistent = self.forward_pass.persistent
            staged = self._staging.stage(plan, persistent.max_context_tokens if persistent else None)
            step = self._last = DeviceStep(plan, self._stream, staged.pinned.done)
            self.forward_pass.restore_states(plan)
            if staged.sampling is None:
                output = self._forward(staged)
                step.vectors = self._pooled.fetch(plan, output)
                self.forward_pass.save_states(plan)
                step.launch_sampling = lambda: self._sample_late(plan, staged, output.logits)
                return step
            if staged.valid_rows or staged.bucket is not None:
                sampled, output = self._forward_and_sample(staged, staged.sampling)
                step.results = self._staging.fetch(staged, sampled)
                step.vectors = self._pooled.fetch(plan, output)
            else:
                self._forward(staged)
            self.forward_pass.save_states(plan)
            step.done.record()
        return step

    def warm_up(self) -> None:
        """Run the largest step and each bucket, so that all is there that is allocated or loaded on first
        use.

        Overwrites blocks of the cache: for before the first request. From here on graphs are captured, so
        memory that steps use must not move any more.
        """
        for plan in warm_plans(self._limits):
            run_step(self, plan)
        self.graphs.captures = True

    def _forward(self, step: StagedStep) -> Output:
        """Launch the forward pass alone."""
        if step.bucket is None:
            return self.forward_pass(step.batch)
        key = ("forward", step.bucket, step.is_long)
        return self.graphs.run(key, lambda: self.forward_pass(step.batch))

    def _forward_and_sample(self, step: StagedStep, sampling: StagedSampling) -> tuple[SampledArrays, Output]:
        """Launch the forward pass and the sampling, as one graph where the step only decodes."""

        def body() -> tuple[SampledArrays, Output]:
            output = self.forward_pass(step.batch)
            return self._sample(step, sampling, output.logits), output

        if step.bucket is None:
            return body()
        return self.graphs.run((step.bucket, step.is_long, sampling.logprobs, sampling.greedy), body)

    def _sample_late(self, plan: Plan, step: StagedStep, logits: Array) -> tuple[Sampled, Array]:
        """Upload the parameters of ``plan``, known by now; launch the sampling and the copies of results."""
        sampled = self._sample(step, self._staging.stage_sampling(plan, step), logits)
        return self._staging.fetch(step, sampled)

    def _sample(self, step: StagedStep, sampling: StagedSampling, logits: Array) -> SampledArrays:
        return self._sampler.launch(
            logits, step.rows, sampling.parameters, logprobs=sampling.logprobs, greedy=sampling.greedy
        )


def warm_plans(limits: Limits) -> Iterator[Plan]:
    """Yield a plan with the most tokens, sequences and reported log-probabilities, and one of each bucket."""
    longest = limits.cache.tokens(1, limits.max_context - 1, limits.max_step_tokens)
    counts, spare = [], limits.max_step_tokens - limits.max_running
    for _ in range(limits.max_running):
        counts.append(min(1 + spare, longest))
        spare -= counts[-1] - 1
    yield tuple(_warm_prefill(limits, tokens) for tokens in counts)
    for bucket in reversed(buckets(limits.max_running)):
        yield tuple(Chunk.decode(_warm_sequence(limits, 1), 0) for _ in range(bucket))


def _warm_prefill(limits: Limits, tokens: int) -> Chunk:
    """Return a chunk that computes a prompt of ``tokens`` tokens and reports log-probabilities."""
    return Chunk.prefill(_warm_sequence(limits, tokens, logprobs=0), 0, tokens, samples=True)


def _warm_sequence(limits: Limits, tokens: int, logprobs: int | None = None) -> Sequence:
    request = Submit("warm-up", (0,) * tokens, 2, SamplingParams(logprobs=logprobs))
    sequence = Sequence(request, priority_key=(0, 0), max_length=tokens + 2, eos=frozenset())
    sequence.cache = scratch_cache(limits.cache, tokens)
    return sequence
