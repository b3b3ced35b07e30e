"""Memory of dequantizing on the host is what the plan counts for it."""

import tracemalloc

import numpy as np
import pytest
from quantized_checkpoints import FORMATS
from safetensors.numpy import save_file

from wisp_plan.checkpoint.directory import read_file
from wisp_plan.families.reader import ConfigReader
from wisp_plan.memory.loading import DEQUANTIZED_BYTES, HOST_CHUNK_BYTES, elements_at_once
from wisp_plan.quantization.config import read_quantization
from wisp_plan.spec.weight import WeightSpec, stacked
from wisp_plan.weights.stored import as_stored
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import plan_quantized
from wisp_runtime.weights.quantized_rows import read_dequantized

FILE = "model.safetensors"
SHAPE = 768, 1024


@pytest.mark.parametrize("name", FORMATS)
def test_a_chunk_is_as_large_as_the_plan_says_and_takes_no_more_memory(tmp_path, name):
    section, write = FORMATS[name]
    tensors, _ = write(np.random.default_rng(1), *SHAPE)
    save_file({f"q{suffix}": values for suffix, values in tensors.items()}, tmp_path / FILE)
    by_name = read_file(tmp_path / FILE).by_name
    quantization = read_quantization(ConfigReader({"quantization_config": section}))
    declared = WeightSpec("q.weight", SHAPE, stacked(("q.weight", SHAPE)), "projection")
    weights = as_stored([declared], by_name, quantization)
    chunks = plan_quantized(weights, by_name, HOST_CHUNK_BYTES)
    planned = elements_at_once(weights[0].sources[0])
    assert max(rows * columns for rows, columns in (chunk.shape for chunk in chunks)) == planned
    with Files(tmp_path, [FILE]) as files:
        tracemalloc.start()
        try:
            for chunk in chunks:
                read_dequantized(files, chunk)
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak_bytes <= DEQUANTIZED_BYTES * planned + HOST_CHUNK_BYTES
