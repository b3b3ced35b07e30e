"""Wisp's side: a loaded model, run over chunks of sequences whose blocks lie scattered in the cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from parity_reference import Seen
from parity_routing import Recorder

from wisp_plan.memory.cache import cache_sizes, model_groups
from wisp_plan.memory.step import StepSizes
from wisp_runtime.batch import Batch, StepKind
from wisp_runtime.engine.execution.forward import ForwardPass
from wisp_runtime.engine.persistent.strategy import load_persistent
from wisp_runtime.errors import KernelNotCompiled
from wisp_runtime.layers.cache import ModelCache, allocate
from wisp_runtime.models.decoder import Decoder
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.ops.protocol.attention import UNQUANTIZED
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.ops.protocol.persistent import PersistentKernel

BLOCK_TOKENS = 16
MAX_TOKENS, MAX_SEQUENCES = 8192, 64  # of a step
_NAN_BYTE = 0xFF


class Chunk(NamedTuple):
    """``count`` tokens of sequence ``row``, from position ``first``: a chunk of a prompt, or a decode."""

    row: int
    first: int
    count: int


Step = list[Chunk]


def on_stream_of(ops: Ops) -> None:
    """Let CuPy's copies run on the stream of ``ops``: who opened a GPU last has left its own behind."""
    if ops.device == "cuda":
        cast(Any, ops).gpu.stream.use()


@dataclass
class Ours:
    """A model of ours on a device."""

    model: Decoder
    ops: Ops
    persistent: PersistentKernel | None = None

    @classmethod
    def load(cls, folder: Path, ops: Ops) -> Ours:
        """Read the checkpoint in ``folder`` as serving would."""
        on_stream_of(ops)
        model = load_model(folder, read_spec(folder), ops)
        assert isinstance(model, Decoder)
        persistent = None
        if ops.device == "cuda":
            step = StepSizes(MAX_TOKENS, MAX_SEQUENCES, model.spec.max_context, BLOCK_TOKENS)
            cast(Any, ops).reserve(model.spec, step)
            # decode steps are compared as they are served
            encodings = (UNQUANTIZED,) * len(model.spec.layers)
            try:
                kernel = load_persistent(model, ops, MAX_SEQUENCES, encodings)
            except KernelNotCompiled as error:
                kernel = error.message
            persistent = None if isinstance(kernel, str) else kernel
            print("persistent decode kernel" if persistent else f"decode steps op by op: {kernel}")
        return cls(model, ops, persistent)

    def see(self, sequences: list[list[int]], steps: list[Step]) -> list[Seen]:
        """Run ``steps`` in order, each of them one batch; return what was computed of each sequence.

        The logits are those of each sequence's last chunk.
        """
        on_stream_of(self.ops)
        spec, random = self.model.spec, np.random.default_rng(9)
        widths = [-(-len(tokens) // BLOCK_TOKENS) for tokens in sequences]
        cache = self._unwritten_cache(sum(widths) + 3, len(sequences))
        blocks = [_scattered(random.permutation(cache.blocks).tolist(), widths) for _ in cache.groups]
        streams = [
            [np.empty((len(tokens), spec.hidden), np.float32) for _ in range(len(spec.layers) + 1)]
            for tokens in sequences
        ]
        logits: dict[int, np.ndarray] = {}
        routes: list[list[list[np.ndarray]]] = [[] for _ in sequences]
        serve = ForwardPass(self.model, cache)
        serve.persistent = self.persistent
        for step in steps:
            batch = self._batch(sequences, blocks, step)

            def keep(layer: int, stream: np.ndarray, step: Step = step) -> None:
                at = 0
                for row, first, count in step:
                    streams[row][layer][first : first + count] = stream[at : at + count]
                    at += count

            states = [(chunk.row, len(sequences) + chunk.row) for chunk in step if cache.states]
            for state, kept in states:
                cache.copy_state(state, kept)
            with Recorder(self.ops) as recorder:
                self.model.forward(batch, cache, keep)
            ends = np.cumsum([chunk.count for chunk in step])[:-1]
            parts = [np.split(route, ends) for route in recorder.routes]
            for number, chunk in enumerate(step):
                routes[chunk.row].append([of_layer[number] for of_layer in parts])
            # Once more as it is served: with a probe the last layer computes rows that nobody else wants.
            for state, kept in states:
                cache.copy_state(kept, state)
            found = self.ops.to_host(serve(batch).logits)
            logits |= {chunk.row: found[row : row + 1].copy() for row, chunk in enumerate(step)}
        joined = [list(map(np.concatenate, zip(*chunks, strict=True))) for chunks in routes]
        return [Seen(streams[row], logits[row], joined[row]) for row in range(len(sequences))]

    def _unwritten_cache(self, blocks: int, sequences: int) -> ModelCache:
        """Return a cache full of NaN: nothing that was not written may reach a result."""
        spec, device = self.model.spec, self.ops.device
        sizes = cache_sizes(
            model_groups(spec, "bf16" if device == "cuda" else "float32"),
            blocks,
            block_tokens=BLOCK_TOKENS,
            max_concurrent=sequences,
            max_step_tokens=blocks * BLOCK_TOKENS,
            max_context=blocks * BLOCK_TOKENS,
        )
        cache = allocate(sizes, self.ops)
        for array in chain(*cache.groups, cache.states):
            if device == "cuda":
                array.data.memset_async(_NAN_BYTE, array.nbytes)
            elif array.dtype == np.float32:
                array[:] = np.nan
        return cache

    def _batch(self, sequences: list[list[int]], blocks: list[list[list[int]]], step: Step) -> Batch:
        """Return the batch of a step; ``blocks`` are those of each paged group's sequences."""
        counts = [chunk.count for chunk in step]
        starts = (0, *np.cumsum(counts).tolist())
        contexts = tuple(chunk.first + chunk.count for chunk in step)
        positions = np.concatenate([np.arange(chunk.first, chunk.first + chunk.count) for chunk in step])
        tokens = [sequences[row][first : first + count] for row, first, count in step]
        place = self.ops.from_host
        (slots, tables), *others = (_places(of_group, step, positions) for of_group in blocks)
        batch = Batch(
            tokens=place(np.concatenate(tokens).astype(np.int32)),
            positions=place(positions.astype(np.int32)),
            slots=place(slots),
            query_starts=place(np.array(starts, np.int32)),
            context_lengths=place(np.array(contexts, np.int32)),
            block_tables=place(tables),
            logit_rows=place(np.array(starts[1:], np.int64) - 1),
            query_starts_host=starts,
            context_lengths_host=contexts,
            kind=StepKind.DECODE if set(counts) == {1} else None,
            state_slots=place(np.array([chunk.row for chunk in step], np.int32)),
        )
        groups = [replace(batch, slots=place(slots), block_tables=place(tables)) for slots, tables in others]
        return replace(batch, other_groups=tuple(groups))


def _scattered(order: list[int], widths: list[int]) -> list[list[int]]:
    """Return blocks of each sequence, taken from ``order``."""
    return [[order.pop() for _ in range(width)] for width in widths]


def _places(blocks: list[list[int]], step: Step, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return slots and block tables of a step in one paged group."""
    tables = np.zeros((len(step), max(len(blocks[chunk.row]) for chunk in step)), np.int32)
    for row, chunk in enumerate(step):
        tables[row, : len(blocks[chunk.row])] = blocks[chunk.row]
    rows = np.repeat(np.arange(len(step)), [chunk.count for chunk in step])
    blocks_of_tokens = tables[rows, positions // BLOCK_TOKENS].astype(np.int64)
    return blocks_of_tokens * BLOCK_TOKENS + positions % BLOCK_TOKENS, tables


def all_at_once(lengths: list[int]) -> list[Step]:
    """Return the schedule that computes every sequence in one step."""
    return [[Chunk(row, 0, length) for row, length in enumerate(lengths)]]


def together(lengths: list[int], decodes: int) -> list[Step]:
    """Return the schedule that computes all prompts in one step, then decodes all sequences in each more."""
    prompts = [Chunk(row, 0, length - decodes) for row, length in enumerate(lengths)]
    return [
        prompts,
        *(
            [Chunk(row, length - decodes + n, 1) for row, length in enumerate(lengths)]
            for n in range(decodes)
        ),
    ]


def mixed(lengths: list[int], chunks: list[int], decodes: int) -> list[Step]:
    """Return a schedule in which prompts are computed in chunks while others already decode.

    Args:
        lengths: lengths of the sequences; the last ``decodes`` tokens of each are decoded, one a step.
        chunks: prompt tokens a step, for each sequence; a sequence starts a step after the one before it.
        decodes: tokens that are decoded at the end of each sequence that has more than those.
    """
    done, steps, round_number = [0] * len(lengths), [], 0
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        step = []
        for row, length in enumerate(lengths):
            prompt = max(length - decodes, 1)
            if done[row] == length or row > round_number:
                continue
            count = min(chunks[row], prompt - done[row]) if done[row] < prompt else 1
            step.append(Chunk(row, done[row], count))
            done[row] += count
        steps.append(step)
        round_number += 1
    return steps
