import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops import reference  # noqa: E402
from wisp_runtime.ops.cuda.attention.rope import Rope  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import BF16, full_nan, to_device, to_host, to_host_float32  # noqa: E402

EPS, POSITIONS = 1e-6, 512
HALF_ULP = 2**-8 * (1 + 1e-3)  # of bf16, relative
NOISE = 1e-5  # absolute: x cos - y sin cancels, and a multiply-add rounds once where NumPy rounds twice

SHAPES = [  # (Hq, Hkv, Dh), R, Tb
    ((32, 8, 128), 128, 16),
    ((14, 2, 64), 64, 16),
    ((4, 4, 80), 80, 8),
    ((6, 2, 96), 96, 24),
    ((8, 1, 192), 192, 16),
    ((8, 1, 256), 256, 32),
    ((3, 1, 128), 64, 16),  # RoPE on half of the channels
    ((3, 1, 80), 32, 16),
    ((2, 2, 72), 72, 16),  # pairs 36 channels apart: 8-byte accesses
    ((5, 1, 136), 24, 8),
    ((24, 4, 256), 64, 16),  # Qwen3.5: RoPE on a quarter of the channels
    ((64, 8, 64), 0, 16),  # no positions: norms alone, if any
    ((5, 1, 72), 0, 8),
    ((1, 1, 8), 8, 8),
    ((2, 1, 248), 248, 16),
]


def case(random, random_bf16, heads, rotated, block_tokens, tokens):
    """Make a step of ``tokens`` tokens at random positions and slots, every third a padding row."""
    query_heads, kv_heads, size = heads
    blocks = tokens // block_tokens + 3
    slots = random.permutation(blocks * block_tokens)[:tokens].astype(np.int64)
    slots[2::3] = -1
    angles = random.uniform(0, 7, (POSITIONS, rotated // 2))
    return {
        "qkv": random_bf16((tokens, (query_heads + 2 * kv_heads) * size)),
        "cosines": np.cos(angles).astype(np.float32),
        "sines": np.sin(angles).astype(np.float32),
        "positions": random.integers(0, POSITIONS, tokens, np.int32),
        "slots": slots,
        "cache": (blocks, kv_heads, block_tokens, size),
    }


def expected(one, heads, norms, *, offset=0):
    """Return q, and keys and values in float32, NaN where nothing is written."""
    query_heads, kv_heads, size = heads
    split = one["qkv"].astype(np.float32).reshape(-1, query_heads + 2 * kv_heads, size)
    q, k, v = np.split(split, [query_heads, query_heads + kv_heads], axis=1)
    if norms is not None:
        scales = (norm.astype(np.float32) + offset for norm in norms)
        q, k = (reference.rmsnorm(x, scale, eps=EPS) for x, scale in zip((q, k), scales, strict=True))
    tables = one["cosines"][one["positions"]], one["sines"][one["positions"]]
    q, k = np.ascontiguousarray(q), np.ascontiguousarray(k)
    reference.rope(q, *tables)
    reference.rope(k, *tables)
    keys, values = (np.full(one["cache"], np.nan, np.float32) for _ in range(2))
    real = one["slots"] >= 0
    reference.write_kv(k[real], v[real], one["slots"][real], keys, values)
    return q, keys, values


def run(device, one, heads, norms, *, is_zero_centred=False, more=0):
    """Return the same from the kernel, and the whole of qkv; q lies in it.

    Rows have ``more`` columns behind.
    """
    keys, values = full_nan(one["cache"], BF16), full_nan(one["cache"], BF16)
    columns = one["qkv"].shape[1]
    behind = np.full((len(one["qkv"]), more), np.nan, BF16)
    qkv = to_device(np.concatenate((one["qkv"], behind), 1))[:, :columns]
    weights = (None, None) if norms is None else tuple(map(to_device, norms))
    tables = to_device(one["cosines"]), to_device(one["sines"])
    where = to_device(one["positions"]), to_device(one["slots"])
    q = Rope(device)(
        qkv, heads, *weights, EPS, *tables, *where, keys, values, is_zero_centred=is_zero_centred
    )
    assert q.data.ptr == qkv.data.ptr
    assert q.strides == (qkv.strides[0], 2 * heads[2], 2)
    after = to_host(cp.ascontiguousarray(qkv.view(np.uint16))).view(BF16)
    q = after[:, : heads[0] * heads[2]].astype(np.float32).reshape(q.shape)
    return q, to_host_float32(keys), to_host_float32(values), after


@pytest.mark.parametrize(("heads", "rotated", "block_tokens"), SHAPES)
@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("tokens", [1, 37])
def test_rope_and_cache_equal_their_references_within_rounding(
    device, random, random_bf16, heads, rotated, block_tokens, has_norms, tokens
):
    one = case(random, random_bf16, heads, rotated, block_tokens, tokens)
    norms = (random_bf16(heads[2:]), random_bf16(heads[2:])) if has_norms else None
    q, keys, values, qkv = run(device, one, heads, norms)
    want_q, want_keys, want_values = expected(one, heads, norms)
    assert q.shape == want_q.shape
    assert np.allclose(q, want_q, rtol=HALF_ULP, atol=NOISE)
    assert np.allclose(keys, want_keys, rtol=HALF_ULP, atol=NOISE, equal_nan=True)
    assert np.array_equal(values, want_values, equal_nan=True)
    beyond_q = heads[0] * heads[2]
    assert np.array_equal(qkv[:, beyond_q:], one["qkv"][:, beyond_q:])


@pytest.mark.parametrize(("heads", "rotated", "block_tokens"), SHAPES[5:11])
def test_zero_centred_norms_of_heads_have_a_factor_of_one_more(
    device, random, random_bf16, heads, rotated, block_tokens
):
    one = case(random, random_bf16, heads, rotated, block_tokens, 9)
    norms = random_bf16(heads[2:], 0.1), random_bf16(heads[2:], 0.1)
    q, keys, values, _ = run(device, one, heads, norms, is_zero_centred=True)
    want_q, want_keys, want_values = expected(one, heads, norms, offset=1)
    assert np.allclose(q, want_q, rtol=HALF_ULP, atol=NOISE)
    assert np.allclose(keys, want_keys, rtol=HALF_ULP, atol=NOISE, equal_nan=True)
    assert np.array_equal(values, want_values, equal_nan=True)


def test_rows_of_heads_may_be_apart(device, random, random_bf16):
    heads = (24, 4, 256)
    one = case(random, random_bf16, heads, 64, 16, 9)
    norms = random_bf16(heads[2:]), random_bf16(heads[2:])
    q, keys, *_ = run(device, one, heads, norms, more=6144)
    want_q, want_keys, _ = expected(one, heads, norms)
    assert np.allclose(q, want_q, rtol=HALF_ULP, atol=NOISE)
    assert np.allclose(keys, want_keys, rtol=HALF_ULP, atol=NOISE, equal_nan=True)


def test_a_chunk_of_8192_tokens_reaches_its_slots(device, random, random_bf16):
    heads = (32, 8, 128)
    one = case(random, random_bf16, heads, 128, 16, 8192)
    q, keys, values, _ = run(device, one, heads, None)
    want_q, want_keys, want_values = expected(one, heads, None)
    assert np.allclose(q, want_q, rtol=HALF_ULP, atol=NOISE)
    assert np.allclose(keys, want_keys, rtol=HALF_ULP, atol=NOISE, equal_nan=True)
    assert np.array_equal(values, want_values, equal_nan=True)


def test_a_position_past_the_table_reads_its_last_row(device, random, random_bf16):
    heads = (2, 1, 64)
    one = case(random, random_bf16, heads, 64, 16, 3)
    one["positions"][:] = POSITIONS + 5, -1, np.iinfo(np.int32).max
    q, *_ = run(device, one, heads, None)
    one["positions"][:] = POSITIONS - 1, 0, POSITIONS - 1
    assert np.allclose(q, expected(one, heads, None)[0], rtol=HALF_ULP, atol=NOISE)


def test_nan_spoils_its_own_head_alone(device, random, random_bf16):
    heads = (3, 1, 128)
    one = case(random, random_bf16, heads, 128, 16, 2)
    one["qkv"][0, 128] = np.nan
    norms = random_bf16((128,)), random_bf16((128,))
    q, *_ = run(device, one, heads, norms)
    assert np.isnan(q[0, 1]).all()
    assert not np.isnan(q[0, [0, 2]]).any()
    assert not np.isnan(q[1]).any()


def test_arrays_that_do_not_fit_are_refused(device):
    good = {
        "qkv": full_nan((2, 256), BF16),
        "heads": (2, 1, 64),
        "q_norm": None,
        "k_norm": None,
        "eps": EPS,
        "cosines": full_nan((9, 32), np.float32),
        "sines": full_nan((9, 32), np.float32),
        "positions": full_nan((2,), np.int32),
        "slots": full_nan((2,), np.int64),
        "keys": full_nan((3, 1, 16, 64), BF16),
        "values": full_nan((3, 1, 16, 64), BF16),
    }
    refused = (
        {"heads": (2, 1, 60), "qkv": full_nan((2, 240), BF16), "keys": full_nan((3, 1, 16, 60), BF16)},
        {"heads": (2, 2, 64)},
        {"qkv": full_nan((2, 260), BF16)[:, :256]},  # rows apart by no multiple of 16 bytes
        {"qkv": full_nan((2, 512), BF16)[:, 4:260]},
        {"cosines": full_nan((9, 36), np.float32), "sines": full_nan((9, 36), np.float32)},  # R > Dh
        {"cosines": full_nan((9, 30), np.float32), "sines": full_nan((9, 30), np.float32)},  # R % 8
        {"sines": full_nan((8, 32), np.float32)},
        {"slots": full_nan((2,), np.int32)},
        {"positions": full_nan((3,), np.int32)},
        {"q_norm": full_nan((32,), BF16)},
        {"values": full_nan((3, 1, 8, 64), BF16)},
    )
    for change in refused:
        with pytest.raises(ShapeError):
            Rope(device)(**(good | change))
