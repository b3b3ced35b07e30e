"""gpt-oss in the persistent decode kernel against the general path: both kinds of layers, experts in MXFP4.

As of other mixtures, a row may have another choice at a near-tie: of one layer, which sees all tokens or a
window, and of both. No model is prepared that has such layers: kernels are compiled here.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))
from decode_batch import decode_batch
from test_persistent_decode import CONTEXTS, TOKENS, Subject
from test_persistent_experts import BATCHES, check_layers

from wisp_plan.presets import shape_spec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
SHAPE, FORMATS = shape_spec("gpt-oss-20b"), "bf16:mxfp4_fields"
BOTH, WINDOWED, FULL = slice(0, 2), slice(0, 1), slice(1, 2)
MIN_COSINE_OF_BOTH = 0.998  # what one layer rounds the next one's attention and experts see


def compile_kernel(device, spec):
    """Compile the kernel of ``spec`` unless it is there."""
    from wisp_runtime.config import kernels_dir
    from wisp_runtime.errors import CompilerMissing
    from wisp_runtime.ops.cuda.device import build
    from wisp_runtime.ops.cuda.device.catalogue import Catalogue
    from wisp_runtime.ops.cuda.persistent.model import kernel_model

    catalogue = Catalogue()
    (source,) = catalogue.templates("hopper", FORMATS, kernel_model(spec))
    job = build.Job(source, device.arch, kernels_dir() / catalogue.cubin_name(source, device.arch))
    try:
        job.cubin.is_file() or build.compile_one(job, build.find_nvcc(), catalogue.root / "include")
    except CompilerMissing as error:
        pytest.skip(error.message)


class GptOss(Subject):
    """Some layers of a gpt-oss."""

    def __init__(self, device, layers=slice(None), shape=SHAPE, **changes):
        spec = replace(shape, layers=shape.layers[layers], **{"vocab": 4000, "max_context": 8192} | changes)
        compile_kernel(device, spec)
        super().__init__(device, spec, blocks=1600, quantization="auto")
        self.step.count_experts(self.model.expert_load.counts)

    def batch(self, contexts, seed=1, blocks=None):
        from wisp_runtime.ops.cuda.device.arrays import to_device

        first, *others = (
            decode_batch(contexts, self.spec.vocab, range(len(keys[0])), TOKENS, seed + group, to_device)
            for group, (keys, _) in enumerate(self.cache.groups)
        )
        return replace(first, other_groups=tuple(others))


@pytest.fixture(scope="module", params=[WINDOWED, FULL], ids=["window", "full"])
def one_layer(request, device):
    return GptOss(device, request.param)


@pytest.mark.parametrize("contexts", BATCHES.values(), ids=list(BATCHES))
def test_a_layer_gives_what_the_general_path_gives(one_layer, contexts):
    check_layers(one_layer, contexts)


@pytest.fixture(scope="module")
def both(device):
    return GptOss(device, BOTH)


@pytest.mark.parametrize("contexts", BATCHES.values(), ids=list(BATCHES))
def test_both_kinds_of_layers_read_their_own_cache(both, contexts):
    check_layers(both, contexts, MIN_COSINE_OF_BOTH)


def test_the_same_step_gives_the_same_bits(both):
    batch = both.batch(CONTEXTS["thirty-two"])
    first = both.persistent(batch)
    for _ in range(5):
        assert np.array_equal(first, both.persistent(batch))
