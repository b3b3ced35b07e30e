"""Which path decode steps take, and that a kernel which gives other numbers is found before it serves."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from test_llama import OPS, make

from wisp_runtime.engine import decode_path
from wisp_runtime.engine.decode_path import choose
from wisp_runtime.engine.plan import Limits
from wisp_runtime.memory.kv import allocate
from wisp_runtime.ops.backend import Memory

LIMITS = Limits(blocks=8, block_tokens=16, max_step_tokens=64, max_concurrent=40, max_context=64, vocab=90)
MEMORY = Memory("cuda", "a GPU", free_bytes=9 << 30, total_bytes=10 << 30, process_bytes=1 << 30)


class Gpu:
    """The CPU's ops, called a GPU."""

    device = "cuda"

    def __getattr__(self, name):
        return getattr(OPS, name)


class Step:
    """A whole step that computes as the model does, plus an error."""

    max_sequences, max_context_tokens = 32, 1 << 20

    def __init__(self, model, error):
        self.model, self.error, self.rows = model, error, []

    def takes(self, batch):
        return len(batch.tokens) == len(batch.context_lengths) == len(batch.logit_rows)

    def __call__(self, batch, keys, values):
        self.rows.append(len(batch.tokens))
        self.model.whole_step = None
        logits = self.model.forward(batch, SimpleNamespace(keys=keys, values=values, block_tokens=16))
        self.model.whole_step = self
        return logits + self.error * np.random.default_rng(1).standard_normal(logits.shape)


@pytest.fixture(autouse=True)
def _any_model_is_large_enough(monkeypatch):
    monkeypatch.setattr(decode_path, "_LEAST_WEIGHT_BYTES", 0)


def chosen(error=0.0, why=None, wanted="auto", memory=MEMORY, limits=LIMITS):
    model = make()
    step = Step(model, error)

    def use(max_sequences):
        assert max_sequences == 32  # of 40 that may run
        model.whole_step = None if why else step
        return why

    model.use_whole_steps = use
    cache = allocate(model.spec, OPS, blocks=limits.blocks, block_tokens=limits.block_tokens)
    return choose(wanted, model, cache, Gpu(), limits, memory), model, step


def test_a_step_that_gives_the_same_is_taken_after_it_was_tried_in_every_width():
    found, model, step = chosen()
    assert (found.path, found.up_to, found.why) == ("persistent", 32, "")
    assert model.whole_step is step
    assert step.rows == [1, 16, 32]
    assert found.to_dict() == {"decodePath": "persistent", "upTo": 32, "upToTokens": 1 << 20}
    assert [found.of(*step) for step in ((1, 9), (32, 1 << 20), (33, 40), (2, 2 << 20))] == [
        "persistent",
        "persistent",
        "general",
        "general",
    ]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"error": 5.0}, "a step of 1 in one launch differs from the general path: cosine 0."),
        ({"error": np.nan}, "differs from the general path: cosine nan"),
        ({"why": "not compiled"}, "not compiled"),
        ({"wanted": "general"}, "--decode-path general"),
        ({"limits": Limits(8, 8, 64, 40, 64, 90)}, "KV blocks of 8 tokens"),
        ({"memory": Memory("cuda", "a GPU", 4 << 30, 10 << 30, 1 << 30)}, "another process uses the GPU"),
    ],
)
def test_anything_else_takes_the_general_path_and_says_why(settings, says):
    found, model, _ = chosen(**settings)
    assert found.path == "general"
    assert says in found.why
    assert model.whole_step is None
    assert found.to_dict() == {"decodePath": "general", "why": found.why}


def test_a_small_model_takes_the_general_path(monkeypatch):
    monkeypatch.setattr(decode_path, "_LEAST_WEIGHT_BYTES", 1 << 30)
    assert chosen()[0].why.startswith("the model is small")


def test_the_cpu_says_that_it_is_one():
    found = choose("auto", make(), None, OPS, LIMITS, MEMORY)
    assert (found.path, found.why) == ("reference", "the CPU computes op by op")
