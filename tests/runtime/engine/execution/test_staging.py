"""Places of a step's inputs on the device: kernels take 16 bytes at a time."""

import sys
from pathlib import Path

import pytest

from wisp_plan.memory.cache import CacheGroup, CacheSizes, Pool
from wisp_plan.spec.cache import PagedKV
from wisp_runtime.engine.cache.sequence_cache import scratch_cache
from wisp_runtime.engine.execution.staging import Staging
from wisp_runtime.engine.scheduling.plan import Chunk, Limits
from wisp_runtime.engine.scheduling.sequence import Sequence
from wisp_runtime.engine.transport.messages import Submit

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))
from fake_device import FakeSampler, FakeStream

TOKENS = 16  # of a block
ARRAYS = ("tokens", "positions", "slots", "query_starts", "context_lengths", "block_tables", "logit_rows")


@pytest.mark.parametrize("pools", [1, 2, 3])
@pytest.mark.parametrize("max_context", [16, 600, 608, 4096 + 17])  # 1, 38, 38 and 258 blocks
@pytest.mark.parametrize(("most", "sequences"), [(1, 1), (3, 3), (5, 3)])
@pytest.mark.parametrize("decodes", [True, False])
def test_the_arrays_of_every_pool_lie_at_multiples_of_16_bytes(pools, max_context, most, sequences, decodes):
    groups = (CacheGroup(PagedKV(1, 1, 1, window=None if index else 128), (index,)) for index in range(pools))
    cache = CacheSizes(TOKENS, tuple(Pool(group, 300) for group in groups))
    limits = Limits(cache, 32, most, max_context, vocab=16)
    stream = FakeStream(is_late=False)
    staging = Staging(stream, limits, FakeSampler(stream, limits.max_running))
    plan = tuple(chunk(cache, decodes) for _ in range(sequences))
    batch = staging.stage(plan).batch
    for group in range(pools):
        of_group = batch.of_group(group)
        assert of_group.block_tables.shape[1] * TOKENS >= max_context
        for name in ARRAYS:
            array = getattr(of_group, name)
            assert array.ctypes.data % 16 == 0, (group, name)
            assert array.flags.c_contiguous, (group, name)


def chunk(cache, decodes):
    sequence = Sequence(Submit("r", (1, 2, 3), 2), priority_key=(0, 0), max_length=5, eos=frozenset())
    sequence.cache = scratch_cache(cache, 3)
    return Chunk.decode(sequence, 2) if decodes else Chunk.prefill(sequence, 0, 3, samples=True)
