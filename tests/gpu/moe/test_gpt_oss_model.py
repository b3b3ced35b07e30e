"""A small gpt-oss on the GPU, its experts in MXFP4 as they are stored, against its formulas in float64."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_plan.hardware.kernel_formats import kernel_formats  # noqa: E402
from wisp_plan.memory.step import StepSizes  # noqa: E402
from wisp_runtime.layers.cache import allocate_blocks  # noqa: E402
from wisp_runtime.models.load import open_checkpoint, read_spec  # noqa: E402
from wisp_runtime.models.single_sequence import BLOCK_TOKENS, blocks_of, sequence_batch  # noqa: E402
from wisp_runtime.ops.cuda.ops import CudaOps  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "runtime/models"))
from float64_gpt_oss import Float64GptOss  # noqa: E402
from test_gpt_oss import write  # noqa: E402

SIZES = {
    "hidden_size": 256,
    "intermediate_size": 192,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_local_experts": 16,
    "num_experts_per_tok": 4,
    "sliding_window": 40,
}
ON_DEVICE = (
    "tokens", "positions", "slots", "query_starts", "context_lengths", "block_tables", "logit_rows"
)  # fmt: skip
MEDIAN, LEAST = 0.9995, 0.98
"""Cosines of logits. Activations rounded to bf16 give 0.99999 and 0.999, no sinks 0.99 and 0.8."""


def logits_of(ops, model, tokens, step):
    """Return the logits after every token, ``step`` tokens at a time."""
    cache = allocate_blocks(model.spec, ops, blocks=blocks_of(len(tokens)), block_tokens=BLOCK_TOKENS)
    found = []
    for first in range(0, len(tokens), step):
        part = tokens[first : first + step]
        host = sequence_batch(part, first, len(tokens), range(len(part)))
        batch = replace(host, **{name: ops.from_host(getattr(host, name)) for name in ON_DEVICE}, kind=None)
        batch = replace(batch, other_groups=(batch,) * (len(cache.groups) - 1))
        found.append(ops.to_host(model.forward(batch, cache).logits).astype(np.float64))
    return np.concatenate(found)


@pytest.fixture(scope="module")
def ops(device):
    return CudaOps(device)


@pytest.mark.parametrize("is_mxfp4", [False, True])
def test_logits_are_those_of_the_formulas(ops, tmp_path, is_mxfp4):
    folder = write(tmp_path / "model", is_mxfp4=is_mxfp4, gain=1.0, **SIZES)
    formats = kernel_formats("hopper")
    model = open_checkpoint(folder, read_spec(folder)).held("auto", formats).load(ops)
    held = {spec.held.name for spec in model.weights.specs.values() if spec.held is not None}
    assert held == ({"mxfp4_fields"} if is_mxfp4 else set())
    ops.reserve(model.spec, StepSizes(300, 16, 512, BLOCK_TOKENS))
    tokens = np.random.default_rng(5).integers(0, 95, 129).tolist()
    expected = Float64GptOss(folder).logits(tokens)
    for step in (129, 50, 1):
        found = logits_of(ops, model, tokens, step)
        cosines = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
        assert np.median(cosines) > MEDIAN, f"{step} at a time: {np.sort(cosines)[:8]}"
        assert cosines.min() > LEAST, f"{step} at a time: {np.sort(cosines)[:8]}"
