"""What a device offers to layers and models: the ops, and how weights are stored for them.

The layers only ever see this Protocol. ``load`` picks the backend; today that is the CPU.
"""

from __future__ import annotations

from typing import Any, Protocol

from wisp_runtime.batch import Array, Batch, Sampled, SamplingBatch
from wisp_runtime.errors import ConfigError

Matrix = Any  # a weight matrix [out, in] as the backend stores it; only its ops look inside


class Ops(Protocol):
    """The ops of one device. Arrays are the device's own; activations are ``[N, ...]``, a token a row.

    Every method raises ShapeError when an array differs from what is said here.
    """

    device: str
    kernels: str  # the kernel set's name, as ``/state`` shows it

    def matrix_elements(self, outputs: int, inputs: int) -> int:
        """Return how many elements a stored ``[outputs, inputs]`` matrix takes, padding included."""
        ...

    def weight_arena(self, elements: int) -> Array:
        """Allocate ``[elements]`` for all weights at once, zeroed, rows of 64 bytes aligned."""
        ...

    def matrix(self, storage: Array, outputs: int, inputs: int) -> Matrix:
        """Make ``storage``, ``[matrix_elements(outputs, inputs)]`` of the arena, a matrix."""
        ...

    def store_rows(self, weight: Matrix, first: int, rows: Array) -> None:
        """Write host ``rows`` ``[R, in]`` float32 into rows ``first:first + R`` of ``weight``."""
        ...

    def store_vector(self, weight: Array, first: int, values: Array) -> None:
        """Write host ``values`` ``[R]`` float32 into ``weight[first:first + R]``."""
        ...

    def from_host(self, array: Array) -> Array:
        """Return a host array as an array of this device."""
        ...

    def kv_arena(self, shape: tuple[int, ...]) -> Array:
        """Allocate keys or values, ``[L, P, Hkv, Tb, Dh]``, zeroed."""
        ...

    def embedding(self, tokens: Array, table: Matrix) -> Array:
        """Return row ``tokens[n]`` of ``table`` ``[V, D]`` for each n: ``[N, D]``."""
        ...

    def rmsnorm(self, x: Array, weight: Array, *, eps: float) -> Array:
        """Scale each row of ``x`` ``[..., D]`` to root mean square 1, then by ``weight`` ``[D]``."""
        ...

    def add_rmsnorm(self, x: Array, residual: Array, weight: Array, *, eps: float) -> Array:
        """Add ``x`` into ``residual`` in place (both ``[N, D]``) and return the norm of the sum."""
        ...

    def linear(self, x: Array, weight: Matrix, bias: Array | None = None) -> Array:
        """Return ``x W^T + bias``: ``[N, in]`` to ``[N, out]``."""
        ...

    def rows(self, table: Array, indices: Array) -> Array:
        """Return rows ``indices`` ``[N]`` of a plain array ``table`` ``[S, C]``: ``[N, C]``."""
        ...

    def rope(self, x: Array, cosines: Array, sines: Array) -> None:
        """Rotate ``x`` ``[N, H, Dh]`` in place by each token's angles ``[N, R / 2]``."""
        ...

    def write_kv(self, k: Array, v: Array, slots: Array, keys: Array, values: Array) -> None:
        """Put K and V ``[N, Hkv, Dh]`` into ``slots`` ``[N]`` of one layer's cache ``[P, Hkv, Tb, Dh]``."""
        ...

    def paged_attention(
        self, q: Array, keys: Array, values: Array, batch: Batch, *, scale: float, window: int | None
    ) -> Array:
        """Let each query ``[N, Hq, Dh]`` attend to its sequence's cache: ``[N, Hq, Dh]``."""
        ...

    def silu_mul(self, gate_up: Array) -> Array:
        """Return ``silu(gate) * up`` of rows that hold gate, then up: ``[N, 2 F]`` to ``[N, F]``."""
        ...

    def sample(self, logits: Array, sampling: SamplingBatch) -> Sampled:
        """Choose the next token of each row of ``logits`` ``[R, V]``; the answer is on the host."""
        ...


def load(device: str, *, threads: int | None = None) -> Ops:
    """Return the ops of ``device``.

    Args:
        device: ``cpu``, or ``auto``, which is the best there is.
        threads: CPU threads; None uses every CPU this process may run on.

    Raises:
        ConfigError: there is no such backend.
    """
    if device in ("auto", "cpu"):
        from wisp_runtime.ops.cpu import CpuOps  # NumPy loads only when it is going to be used

        return CpuOps(threads)
    raise ConfigError(
        f"--device {device}: this build computes on the CPU only. Leave --device out, or set it to cpu."
    )
