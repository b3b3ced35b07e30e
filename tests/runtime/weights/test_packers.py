"""Layers of other projects' packers, read bit for bit as those projects read them (packers/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from wisp_plan.checkpoint.directory import read_file
from wisp_plan.families.reader import ConfigReader
from wisp_plan.quantization.config import read_quantization
from wisp_plan.spec.weight import WeightSpec, stacked
from wisp_plan.weights.stored import as_stored
from wisp_plan.weights.tensors import tensors_of
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.quantized_chunks import plan_quantized
from wisp_runtime.weights.quantized_rows import read_dequantized

FOLDER = Path(__file__).parent / "packers/files"
NAMES = sorted(path.stem for path in FOLDER.glob("*.safetensors"))


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_means_to_us_what_it_means_to_its_packer(name):
    path = FOLDER / f"{name}.safetensors"
    with safe_open(path, "numpy") as file:
        section, expected = json.loads(file.metadata()["quantization_config"]), file.get_tensor("expected")
    tensors = read_file(path).by_name
    layer = WeightSpec("layer", expected.shape, stacked(("layer.weight", expected.shape)), "projection")
    quantization = read_quantization(ConfigReader({"quantization_config": section}))
    (weight,) = as_stored([layer], tensors, quantization)
    assert weight.stored is not None
    for part in tensors_of([weight]):
        stored = tensors[part.name]
        assert stored.dtype in part.dtypes
        assert [extent for extent in stored.shape if extent > 1] == [
            extent for extent in part.shape if extent > 1
        ]
    (chunk,) = plan_quantized([weight], tensors, 1 << 20)
    with Files(FOLDER, [path.name]) as files:
        read = read_dequantized(files, chunk)
    np.testing.assert_array_equal(read.view(np.uint32), expected.view(np.uint32))


def test_there_are_layers_of_every_packer():
    made_by = set()
    for name in NAMES:
        with safe_open(FOLDER / f"{name}.safetensors", "numpy") as file:
            made_by.add(file.metadata()["made_by"].partition(" ")[0])
    assert made_by == {"compressed-tensors", "autoawq", "gptqmodel"}
