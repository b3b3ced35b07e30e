"""Deterministic mode on a device: which kind of step computed a token's keys and values is always the same.

Where the other toy keeps tokens, this one keeps a checksum of the kind of step (of prompts, of generated
tokens), the token and the checksum before it, and answers by that. So a token that was once computed by the
other kind, after a hit, a preemption or an abort, changes all that comes after it.
"""

import sys
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from wisp_plan.memory.cache import one_pool
from wisp_runtime.batch import StepKind
from wisp_runtime.models.model import Output

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from fake_device import fake_device_runner
from test_engine_properties import MAX_CONTEXT, EngineMachine, limits, submits
from toy_engine import VOCAB, ToyModel, ends_of, ruled_token, stir


def mark(is_prompt, token, before):
    """Return the keys of ``token`` after a token that has the keys ``before``."""
    return zlib.crc32(f"{is_prompt}/{token}/{before}".encode())


class Provenance(ToyModel):
    def forward(self, batch, cache):
        marks, positions = cache.keys.reshape(-1), cache.values.reshape(-1)
        of_row = {}
        for b in range(len(batch.context_lengths)):
            for n in range(int(batch.query_starts[b]), int(batch.query_starts[b + 1])):
                if batch.slots[n] < 0:  # padding
                    continue
                position = int(batch.positions[n])
                before = 0
                if position:
                    block, offset = divmod(position - 1, cache.block_tokens)
                    place = int(batch.block_tables[b, block]) * cache.block_tokens + offset
                    assert positions[place] == position - 1
                    before = int(marks[place])
                of_row[n] = mark(batch.kind is StepKind.PREFILL, int(batch.tokens[n]), before)
                marks[batch.slots[n]], positions[batch.slots[n]] = of_row[n], position
        logits = np.zeros((len(batch.logit_rows), VOCAB), np.float32)
        for row, n in enumerate(batch.logit_rows.tolist()):
            logits[row, of_row.get(n, 0) % VOCAB] = 1.0
        return Output(logits)


def answer(request, max_context, _sizes=None):
    """The tokens that ``request`` must get: its prompt computed as prompts are, the rest a token a step."""
    last, generated, sampling = 0, [], request.sampling
    for token in request.prompt:
        last = mark(True, token, last)
    stops = ends_of(request)
    first, end = len(request.prompt), min(len(request.prompt) + request.max_tokens, max_context)
    while first + len(generated) < end:
        token = last % VOCAB
        if sampling.temperature:
            token += stir(sampling.seed, first + len(generated))
        if sampling.presence_penalty:
            token += sum(count**2 for count in Counter(generated).values())
        ruled = ruled_token(request, token % VOCAB, generated)
        if ruled is None:
            break
        generated.append(ruled)
        if generated[-1] in stops:
            break
        last = mark(False, generated[-1], last)
    return generated


@st.composite
def one_group(draw, _max_concurrent):
    return one_pool(draw(st.integers(3, 24)), draw(st.integers(1, 5)), draw(st.none() | st.integers(2, 12)))


class ProvenanceMachine(EngineMachine):
    """Drives an engine in deterministic mode; see :class:`test_engine_properties.EngineMachine`."""

    answer = staticmethod(answer)

    @initialize(
        limits=limits(one_group),
        mixed=st.none() | st.integers(1, 8),
        is_late=st.booleans(),
    )
    def begin(self, limits, mixed, is_late):
        mixed = mixed and min(mixed, limits.max_step_tokens)
        limits = replace(limits, separate_prefill_decode=True, mixed_step_tokens=mixed, max_waiting=1000)
        self.begin_with(limits, fake_device_runner(limits, is_late=is_late, toy=Provenance()))

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), fields=submits(), length=st.integers(1, 30))
    def go_on(self, data, fields, length):
        """Ask with a conversation so far: what was generated is part of a prompt now."""
        earlier = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        said = (*earlier.prompt, *answer(earlier, MAX_CONTEXT))
        self.submit(fields | {"prompt": said[:length]}, 1, is_compiled_late=length % 2 == 0)


TestProvenance = ProvenanceMachine.TestCase
TestProvenance.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
