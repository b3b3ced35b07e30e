"""Activations rounded to E4M3, for GEMMs whose weights are E4M3 too: ``quantize_tokens.cu``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wisp_plan.memory.buffers import gemm as buffers
from wisp_runtime.batch import Array
from wisp_runtime.ops.cuda.device.arrays import BF16
from wisp_runtime.ops.cuda.device.checks import require_true
from wisp_runtime.ops.cuda.device.gpu import Gpu

_THREADS = 256


@dataclass(frozen=True, slots=True)
class Codes:
    """Activations in E4M3.

    Attributes:
        codes: ``[N, in / 2]``: two codes of a row in each bf16.
        scales: float32, a scale a token, or ``[in / 128 rounded up, stride]``.
        stride: tokens between two rows of ``scales``; 0 where there is one.
    """

    codes: Array
    scales: Array
    stride: int


class TokenCodes:
    """Round activations to E4M3.

    Args:
        device: the GPU.
    """

    def __init__(self, device: Gpu) -> None:
        self._device, self._workspace = device, device.workspace
        self.max_tokens = self.max_columns = 0

    def reserve(self, max_tokens: int, max_columns: int) -> None:
        """Allocate the codes and scales of up to ``max_tokens`` by ``max_columns`` activations."""
        self.max_tokens = max(self.max_tokens, max_tokens)
        self.max_columns = max(self.max_columns, max_columns)
        self._workspace.reserve(buffers.token_codes(self.max_tokens, self.max_columns))

    def __call__(self, x: Array, *, in_groups: bool) -> Codes:
        """Return ``x`` ``[N, in]`` bf16 in E4M3, with a scale a token, or 128 columns of it.

        The next call overwrites the result.

        Raises:
            ShapeError: more was asked for than is reserved, or ``in`` is no multiple of 16.
        """
        tokens, columns = x.shape
        message = f"quantize_tokens: {columns} columns, must be a multiple of 16, {self.max_columns} at most"
        require_true(columns % 16 == 0 and columns <= self.max_columns, message)
        message = f"quantize_tokens: {tokens} tokens, {self.max_tokens} are reserved"
        require_true(tokens <= self.max_tokens, message)
        codes, scales = map(self._workspace.view, buffers.token_codes(self.max_tokens, self.max_columns))
        codes = codes[: tokens * columns].reshape(tokens, columns)
        stride = buffers.padded_tokens(self.max_tokens) if in_groups else 0
        entry = "quantize_tokens_128" if in_groups else "quantize_tokens"
        self._device.kernels.get("quantize_tokens", entry).launch(
            *((tokens,), _THREADS, x, codes, scales, np.int32(columns)),
            np.int64(x.strides[0] // BF16.itemsize),
            *((np.int32(stride),) if in_groups else ()),
        )
        return Codes(codes.view(BF16), scales, stride)
