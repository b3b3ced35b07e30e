"""Operations of a layer beside attention, in NumPy: embedding, norms, GEMMs, RoPE, activation."""

from __future__ import annotations

import math

import numpy as np

from wisp_plan.quantization.compact_format import TILE_OUTPUTS
from wisp_runtime.batch import Array
from wisp_runtime.ops.cpu.packed import PackedMatrix
from wisp_runtime.ops.cpu.threads import Work, Workers

_FLOAT32_EXP_MAX = np.float32(88.0)


def widen(stored: Array) -> Array:
    """Return ``stored`` (float32, float16 or bf16, any shape) as float32; every number keeps its value."""
    if stored.dtype.name == "bfloat16":
        # A bf16 number is the upper half of the float32 of the same value.
        wide: Array = np.left_shift(stored.view(np.uint16), 16, dtype=np.uint32).view(np.float32)
        return wide
    return stored.astype(np.float32, copy=False)


def store_rows(weight: PackedMatrix, first: int, rows: Array) -> None:
    """Write ``rows`` ``[R, in]`` float32 into rows ``first:first + R`` of ``weight``."""
    tiles = weight.tiles
    full = len(rows) // TILE_OUTPUTS * TILE_OUTPUTS if first % TILE_OUTPUTS == 0 else 0
    start = first // TILE_OUTPUTS
    grouped = rows[:full].reshape(-1, TILE_OUTPUTS, weight.inputs)
    tiles[start : start + len(grouped)] = grouped.swapaxes(1, 2)
    index = np.arange(first + full, first + len(rows))
    tiles[index // TILE_OUTPUTS, :, index % TILE_OUTPUTS] = rows[full:]


def embedding(tokens: Array, table: PackedMatrix) -> Array:
    """Return row ``tokens[n]`` of ``table`` ``[V, D]`` for each n: ``[N, D]`` float32."""
    tiles: Array = table.tiles
    return tiles[tokens // TILE_OUTPUTS, :, tokens % TILE_OUTPUTS]


def rmsnorm(x: Array, weight: Array, *, eps: float, is_zero_centred: bool = False) -> Array:
    """Scale each row of ``x`` by the inverse of its root mean square, then by ``weight``.

    Args:
        x: ``[..., D]`` float32.
        weight: ``[D]`` float32.
        eps: added to the mean square (no unit).
        is_zero_centred: whether the factor of a channel is one more than its weight.

    Returns:
        ``[..., D]`` float32, a new array.

    Source: Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.
    """
    mean_square = np.vecdot(x, x)
    mean_square /= np.float32(x.shape[-1])
    root = np.sqrt(mean_square + np.float32(eps))
    out = x / root[..., None]
    out *= weight + np.float32(1) if is_zero_centred else weight
    return out


def add_rmsnorm(
    x: Array,
    residual: Array,
    weight: Array,
    *,
    eps: float,
    rows: Array | None = None,
    is_zero_centred: bool = False,
) -> Array:
    """Add ``x`` into ``residual`` in place, or into its ``rows``; return :func:`rmsnorm` of the sum."""
    if rows is None:
        residual += x
        return rmsnorm(residual, weight, eps=eps, is_zero_centred=is_zero_centred)
    summed = residual[rows] + x
    residual[rows] = summed
    return rmsnorm(summed, weight, eps=eps, is_zero_centred=is_zero_centred)


def add_scaled(x: Array, residual: Array, factor: float, rows: Array | None = None) -> None:
    """Add ``factor * x`` into ``residual`` in place, or into its ``rows``, none twice."""
    residual[slice(None) if rows is None else rows] += np.float32(factor) * x


def gather_rows(x: Array, rows: Array) -> Array:
    """Return row ``rows[i]`` of ``x`` ``[N, in]`` for each i: ``[R, in]``, a new array."""
    gathered: Array = x[rows]
    return gathered


def linear(
    x: Array,
    weight: PackedMatrix,
    bias: Array | None = None,
    *,
    workers: Workers | None = None,
    pairs_rows: bool = False,
) -> Array:
    """Multiply: ``y = x W^T + bias``.

    Args:
        x: ``[N, in]`` float32, rows contiguous.
        weight: ``[out, in]``, packed.
        bias: ``[out]`` float32, or None.
        workers: threads that share the tiles; None computes here.
        pairs_rows: compute a single row twice, where that is faster (:mod:`wisp_runtime.ops.cpu.blas`).

    Returns:
        ``[N, out]`` float32; its rows are contiguous, but farther apart than ``out`` where 32 does not
        divide ``out``.
    """
    is_paired = pairs_rows and len(x) == 1
    x = np.concatenate((x, x)) if is_paired else x
    tokens, tiles = len(x), weight.tiles
    y = np.empty((tokens, len(tiles), TILE_OUTPUTS), np.float32)
    by_tile = y.swapaxes(0, 1)
    if workers is None:
        np.matmul(x, tiles, out=by_tile)
    else:
        work = Work(len(tiles), tokens * tiles.size, tiles.nbytes)
        workers.split(work, lambda share: np.matmul(x, tiles[share], out=by_tile[share]))
    flat = y.reshape(tokens, len(tiles) * TILE_OUTPUTS)[:, : weight.outputs]
    flat = flat[:1] if is_paired else flat
    if bias is not None:
        flat += bias
    return flat


def rope(x: Array, cosines: Array, sines: Array) -> None:
    """Rotate the first R channels of every head in place, channel i with channel i + R / 2.

    Args:
        x: ``[N, H, Dh]`` float32, a view is fine.
        cosines, sines: ``[N, R / 2]`` float32, of each token's angles.

    Source: Su et al. 2021, arXiv:2104.09864, eq. 34, in the half-split order of GPT-NeoX.
    """
    half = cosines.shape[1]
    pairs = x[..., : 2 * half].reshape(*x.shape[:2], 2, half)
    rotated = pairs[:, :, ::-1] * sines[:, None, None]
    np.negative(rotated[:, :, 0], out=rotated[:, :, 0])
    pairs *= cosines[:, None, None]
    pairs += rotated


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))``, a new array."""
    half = np.float32(0.5)
    out = np.tanh(half * x)
    out *= half
    out += half
    return out


def silu(x: Array) -> Array:
    """Return ``x * sigmoid(x)``, a new array."""
    out = np.minimum(-x, _FLOAT32_EXP_MAX)
    np.exp(out, out=out)
    out += np.float32(1)
    np.divide(x, out, out=out)
    return out


def gelu(x: Array) -> Array:
    """Return GELU of each number in its approximation by tanh, a new array.

    Source: Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2.
    """
    out = x * x
    out *= np.float32(0.044715)
    out += np.float32(1)
    out *= x
    out *= np.float32(math.sqrt(2 / math.pi))
    np.tanh(out, out=out)
    out += np.float32(1)
    out *= x
    out *= np.float32(0.5)
    return out


def relu2(x: Array) -> Array:
    """Replace each number of ``x`` by the square of its positive part; return ``x``.

    Source: So et al. 2021, arXiv:2109.08668, section 3.2.
    """
    np.maximum(x, 0, out=x)
    return np.multiply(x, x, out=x)


def silu_mul(gate_up: Array) -> Array:
    """Return ``silu(gate) * up``, where each row of ``gate_up`` ``[N, 2 F]`` is gate, then up: ``[N, F]``."""
    inner = gate_up.shape[1] // 2
    out = silu(gate_up[:, :inner])
    out *= gate_up[:, inner:]
    return out


def gelu_mul(gate_up: Array) -> Array:
    """Return ``gelu(gate) * up``, as :func:`silu_mul` does."""
    inner = gate_up.shape[1] // 2
    out = gelu(gate_up[:, :inner])
    out *= gate_up[:, inner:]
    return out


def gate_heads(mixed: Array, gate: Array, rows: Array | None = None) -> Array:
    """Return ``mixed * sigmoid(gate)``, ``[N, Hq Dh]``, or its ``rows``."""
    if rows is not None:
        mixed, gate = mixed[rows], gate[rows]
    return mixed * sigmoid(gate)
