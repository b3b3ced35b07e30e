"""Layers without GPU kernels are refused in one sentence; the CPU takes them."""

from dataclasses import replace

import pytest

from wisp_plan.errors import RequestInvalid
from wisp_plan.fit.request import FitRequest
from wisp_plan.hardware.kernel_layers import WITHOUT_KERNELS, missing_kernels
from wisp_plan.presets import shape_spec
from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_plan.spec.mamba import MambaSpec
from wisp_runtime.errors import ModelUnsupported
from wisp_runtime.ops.cuda.requirements import require_model

DENSE = shape_spec("qwen3-8b")
MIXERS = {"Gated DeltaNet": DeltaNetSpec(16, 32, 128, 128), "Mamba-2": MambaSpec(8, 64, 128)}
LACKING = [name for name in MIXERS if name in WITHOUT_KERNELS]


def with_mixer(mixer):
    layers = (replace(DENSE.layers[0], mixer=mixer), *DENSE.layers[1:])
    return replace(DENSE, layers=layers)


def test_dense_decoders_lack_no_kernels():
    assert missing_kernels(DENSE) == ()


@pytest.mark.parametrize("name", LACKING)
def test_a_gpu_refuses_such_a_layer_and_the_cpu_does_not(name):
    spec = with_mixer(MIXERS[name])
    with pytest.raises(
        RequestInvalid, match=f"no GPU kernels for {name}, which Qwen3ForCausalLM has. .*--device cpu"
    ):
        FitRequest(max_concurrent=1).check(spec)
    FitRequest(max_concurrent=1, device="cpu").check(spec)
    with pytest.raises(ModelUnsupported, match=f"{name}.*--device cpu"):
        require_model(spec, 16)
