"""Families on the CPU against transformers, layer by layer: random weights, read from the files it saves.

Needs a Python with torch and transformers: ``WISP_TEST_TORCH=/opt/torch/bin/python``. ``WISP_TEST_RECORD``
names a file for the result.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from wisp_runtime.layers.cache import allocate_blocks
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.models.single_sequence import BLOCK_TOKENS, blocks_of, sequence_batch
from wisp_runtime.ops.cpu.ops import CpuOps

sys.path.insert(0, str(Path(__file__).parent))
from parity_cases import CASES, Case

TORCH = os.environ.get("WISP_TEST_TORCH", "")
LENGTHS = (1, 63, 64, 65, 129, 4000)
PROMPT_TOKENS, GREEDY_TOKENS = 40, 256
MAX_ERROR = 2e-4
"""Of a stream, over its deviation: both compute in float32, in another order, through all layers."""
MAX_TIE = 1e-3
"""Lead of a logit under which another token may be chosen."""
CHUNKS = (7, 64, 333)

pytestmark = pytest.mark.skipif(not TORCH, reason="WISP_TEST_TORCH names no Python with transformers")


class Compared:
    """A model of ours, and transformers' numbers of it.

    Args:
        case: the model.
        folder: folder that both write into.
    """

    def __init__(self, case: Case, folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps(case.config))
        self.tokens = np.random.default_rng(2).integers(0, case.config["vocab_size"], LENGTHS[-1]).tolist()
        job = {
            "is_mxfp4": case.is_mxfp4,
            "lengths": LENGTHS,
            "tokens": self.tokens,
            "prompt_tokens": PROMPT_TOKENS,
            "greedy_tokens": GREEDY_TOKENS,
        }
        script = Path(__file__).parent / "transformers_reference.py"
        subprocess.run([TORCH, str(script), str(folder), json.dumps(job)], check=True)
        self.expected = np.load(folder / "streams.npz")
        self.ops = CpuOps(threads=1)
        self.model = load_model(folder, read_spec(folder), self.ops)

    def run(self, tokens, step=None):
        """Return the streams ``[L, S, D]`` and logits of ``tokens``, computed ``step`` at a time."""
        length, streams, logits = len(tokens), [], []
        cache = allocate_blocks(
            self.model.spec, self.ops, blocks=blocks_of(length), block_tokens=BLOCK_TOKENS, kv="float32"
        )
        for first in range(0, length, step or length):
            part, seen = tokens[first : first + (step or length)], []
            batch = sequence_batch(part, first, length, range(len(part)), len(cache.groups))
            output = self.model.forward(batch, cache, lambda _layer, stream, seen=seen: seen.append(stream))
            logits.append(output.logits)
            streams.append(np.stack(seen[:-1]))
        return np.concatenate(streams, axis=1), np.concatenate(logits)

    def error(self, length, step=None):
        """Return the largest error of any stream and of the logits, each over its deviation."""
        streams, logits = self.run(self.tokens[:length], step)
        wanted = self.expected[f"streams_{length}"]
        rows = wanted.shape[1]
        pairs = [*zip(streams[:, -rows:], wanted, strict=True)]
        pairs.append((logits[-rows:], self.expected[f"logits_{length}"]))
        return max(float(np.abs(ours - theirs).max() / theirs.std()) for ours, theirs in pairs)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def compared(request, tmp_path_factory):
    made = Compared(request.param, tmp_path_factory.mktemp("parity"))
    RESULTS[request.param.name] = made.results = {}
    yield made
    if record := os.environ.get("WISP_TEST_RECORD"):
        Path(record).write_text(json.dumps(_record(), indent=1) + "\n")


RESULTS: dict[str, dict[str, float]] = {}


def _record():
    return {"maxError": MAX_ERROR, "python": sys.version.split()[0], "cases": RESULTS}


@pytest.mark.parametrize("length", LENGTHS)
def test_a_prompt_computed_at_once_is_equal_layer_by_layer(compared, length):
    error = compared.results[f"{length} tokens"] = compared.error(length)
    assert error < MAX_ERROR


@pytest.mark.parametrize(("length", "step"), [(65, 7), (129, 64), (4000, 333), (129, 1), (4000, 1)])
def test_a_prompt_in_chunks_or_token_by_token_is_equal(compared, length, step):
    error = compared.results[f"{length} tokens, {step} at a time"] = compared.error(length, step)
    assert error < MAX_ERROR


def test_greedy_tokens_are_equal(compared):
    tokens, expected = compared.tokens[:PROMPT_TOKENS], compared.expected["greedy"]
    wanted = expected[:, 0].astype(int).tolist()
    _, logits = compared.run(tokens + wanted, PROMPT_TOKENS)
    ours = logits[PROMPT_TOKENS - 1 : -1].argmax(axis=1)
    different = np.flatnonzero(ours != expected[:, 0])
    compared.results[f"of {GREEDY_TOKENS} greedy tokens different"] = len(different)
    assert (expected[different, 1] < MAX_TIE).all()
    assert len(set(wanted)) > 20, "a model that repeats itself proves little"
