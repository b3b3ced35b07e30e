"""Layers and sizes that GPUs have kernels for: all published ones; others are refused in one sentence."""

from dataclasses import replace

import pytest

from wisp_plan.errors import LayersUnsupported
from wisp_plan.fit.request import FitRequest
from wisp_plan.hardware.kernel_layers import missing_kernels
from wisp_plan.hardware.kernel_limits import excessive_sizes
from wisp_plan.presets import SHAPES, shape_spec
from wisp_plan.spec.mamba import MambaSpec
from wisp_plan.spec.moe import MoeSpec
from wisp_runtime.errors import ModelUnsupported
from wisp_runtime.ops.cuda.requirements import require_model

DENSE = shape_spec("qwen3-8b")
MAMBA = MambaSpec(heads=8, head_size=64, state_size=128)


@pytest.mark.parametrize("shape", SHAPES)
def test_gpus_have_kernels_for_every_published_shape(shape):
    spec = shape_spec(shape)
    assert missing_kernels(spec) == excessive_sizes(spec) == ()
    require_model(spec, 16)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"head_size": 136}, "heads of Mamba-2 have 136 channels, over 128"),
        ({"head_size": 60}, "heads of Mamba-2 have 60 channels, no multiple of 8"),
        ({"state_size": 264}, "states of Mamba-2 have 264 channels, over 256"),
        ({"heads": 12}, "Mamba-2 has 12 heads, no multiple of 8"),
        ({"kernel": 3}, "convolutions of Mamba-2 have 3 taps, not 4"),
        ({"heads": 136, "head_size": 128}, "norms of Mamba-2 have 17408 channels, over 16384"),
        ({"state_dtype": "bf16"}, "states of Mamba-2 are bf16, not float32"),
    ],
)
def test_sizes_of_mamba_that_no_kernel_takes_are_refused_on_gpus_alone(sizes, says):
    layer = replace(DENSE.layers[0], mixer=replace(MAMBA, **sizes))
    spec = replace(DENSE, layers=(layer, *DENSE.layers[1:]))
    with pytest.raises(LayersUnsupported, match=f"{says}.*--device cpu"):
        FitRequest(max_concurrent=1).check(spec)
    with pytest.raises(ModelUnsupported, match=says):
        require_model(spec, 16)
    FitRequest(max_concurrent=1, device="cpu").check(spec)


def test_scores_of_a_router_that_no_kernel_computes_are_refused_by_name():
    mixture, *_ = shape_spec("qwen3-30b-a3b").ffns(MoeSpec)
    mixture = replace(mixture, router=replace(mixture.router, scores="sqrtsoftplus"))
    spec = replace(DENSE, layers=(replace(DENSE.layers[0], ffn=mixture), *DENSE.layers[1:]))
    assert excessive_sizes(spec) == ("scores of a router are sqrtsoftplus, none of softmax, sigmoid",)


def test_groups_divide_the_channels_of_a_norm():
    layer = replace(DENSE.layers[0], mixer=replace(MAMBA, heads=136, head_size=128, groups=8))
    assert excessive_sizes(replace(DENSE, layers=(layer, *DENSE.layers[1:]))) == ()
