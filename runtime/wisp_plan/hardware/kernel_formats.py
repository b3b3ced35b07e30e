"""Weight formats that each generation of GPUs has GEMM kernels for.

A copy of what ``kernels/*/manifest.toml`` lists, for processes that plan without the kernels at hand;
``tests/contract/quantization/test_kernel_formats.py`` compares. Nothing else is offered or proposed.
"""

from __future__ import annotations

from collections.abc import Mapping

from wisp_plan.quantization.packed_format import PACKED_FORMATS

_EVERY = ("bf16", *PACKED_FORMATS)

KERNEL_FORMATS: Mapping[str, tuple[str, ...]] = {
    "hopper": _EVERY,
    "ada": _EVERY,
    "ampere": _EVERY,
}
"""Formats by kernel folder: ``bf16`` and packed formats (:mod:`wisp_plan.quantization.packed_format`).

A generation that is not here is refused by the runtime.
"""


def kernel_formats(hardware: str | None) -> tuple[str, ...]:
    """Return the weight formats with kernels on ``hardware``; none of one that the runtime refuses.

    Args:
        hardware: kernel folder; None: any GPU, which has what all of them have.
    """
    if hardware is not None:
        return KERNEL_FORMATS.get(hardware, ())
    first, *others = KERNEL_FORMATS.values()
    return tuple(name for name in first if all(name in formats for formats in others))
