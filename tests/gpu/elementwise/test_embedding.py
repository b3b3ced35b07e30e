import numpy as np
import pytest

cp = pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

from wisp_runtime.errors import ShapeError  # noqa: E402
from wisp_runtime.ops.cuda.device.arrays import full_nan, to_device, to_host  # noqa: E402
from wisp_runtime.ops.cuda.elementwise.embedding import Embedding  # noqa: E402
from wisp_runtime.ops.cuda.weights.packing import PackedMatrix  # noqa: E402


def packed(table) -> np.ndarray:
    """Lay a table ``[V, D]`` out as the GPU holds it: blocks of 64 x 64, chunk c of row r at c ^ (r % 8)."""
    rows, columns = (-(-size // 64) for size in table.shape)
    padded = np.zeros((rows * 64, columns * 64), table.dtype)
    padded[: table.shape[0], : table.shape[1]] = table
    blocks = padded.reshape(rows, 64, columns, 8, 8).transpose(0, 2, 1, 3, 4)
    places = np.arange(8) ^ (np.arange(64) % 8)[:, None]  # which chunk lies at each place
    return np.ascontiguousarray(np.take_along_axis(blocks, places[None, None, :, :, None], axis=3)).ravel()


@pytest.mark.parametrize(
    ("vocab", "columns"),
    [
        (1, 8),  # the smallest there is
        (100, 64),  # whole blocks of columns, part of a block of rows
        (151, 72),
        (1000, 896),
        (300, 4096),
        (130, 16384),  # several thread blocks a token
    ],
)
@pytest.mark.parametrize("tokens", [1, 3, 257])
def test_a_row_of_the_packed_table_comes_back_to_the_bit(device, random, random_bf16, vocab, columns, tokens):
    table = random_bf16((vocab, columns))
    chosen = random.integers(0, vocab, tokens, np.int32)
    chosen[-1] = vocab - 1
    matrix = PackedMatrix(to_device(packed(table)), vocab, columns, "plain")
    before = device.workspace.array("test.embedding", (tokens, columns), np.float32)
    before.data.memset_async(0xFF, before.nbytes)
    out = Embedding(device)(to_device(chosen), matrix, None, out_name="test.embedding")
    assert np.array_equal(to_host(out), table[chosen].astype(np.float32))


def test_a_negative_token_is_one_that_the_previous_step_sampled(device, random_bf16):
    table = random_bf16((200, 128))
    matrix = PackedMatrix(to_device(packed(table)), 200, 128, "plain")
    sampled = to_device([5, 199, 0, 64], np.int32)
    tokens = to_device([-1, 7, -4, -2, -3, 63], np.int32)
    out = Embedding(device)(tokens, matrix, sampled, out_name="test.embedding")
    assert np.array_equal(to_host(out), table[[5, 7, 64, 199, 0, 63]].astype(np.float32))


def test_tokens_outside_of_the_table_read_its_edge(device, random_bf16):
    table = random_bf16((70, 64))
    matrix = PackedMatrix(to_device(packed(table)), 70, 64, "plain")
    smallest, largest = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    tokens = to_device([70, largest, smallest, -3], np.int32)
    sampled = to_device([-1, 1000], np.int32)  # what a sampler that failed might leave
    out = Embedding(device)(tokens, matrix, sampled, out_name="test.embedding")
    assert np.array_equal(to_host(out), table[[69, 69, 69, 69]].astype(np.float32))
    without = Embedding(device)(tokens, matrix, None, out_name="test.embedding")
    assert np.array_equal(to_host(without), table[[69, 69, 0, 0]].astype(np.float32))


def test_nan_and_infinity_of_the_table_pass_through(device, random_bf16):
    table = random_bf16((64, 64))
    table[3, 5], table[3, 6], table[3, 7] = np.nan, np.inf, -np.inf
    matrix = PackedMatrix(to_device(packed(table)), 64, 64, "plain")
    out = Embedding(device)(to_device([3], np.int32), matrix, None, out_name="test.embedding")
    assert np.array_equal(to_host(out), table[[3]].astype(np.float32), equal_nan=True)


def test_arrays_that_do_not_fit_are_refused(device, random_bf16):
    storage = to_device(packed(random_bf16((64, 64))))
    tokens = to_device([1, 2], np.int32)
    refused = (
        (tokens, PackedMatrix(storage, 64, 60, "plain"), None),  # D
        (tokens, PackedMatrix(storage, 64, 64, "gate_up_interleaved"), None),  # the order of its rows
        (tokens, PackedMatrix(storage.view(np.uint16), 64, 64, "plain"), None),
        (full_nan((2,), np.int64), PackedMatrix(storage, 64, 64, "plain"), None),
        (tokens[:0], PackedMatrix(storage, 64, 64, "plain"), None),
        (tokens, PackedMatrix(storage, 64, 64, "plain"), full_nan((3,), np.int64)),
        (tokens, PackedMatrix(storage[4:], 64, 64, "plain"), None),  # 8 bytes into a chunk
    )
    for tokens, table, sampled in refused:
        with pytest.raises(ShapeError):
            Embedding(device)(tokens, table, sampled, out_name="test.embedding")
