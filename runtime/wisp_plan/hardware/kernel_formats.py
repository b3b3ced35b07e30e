"""Weight formats that each generation of GPUs has GEMM kernels for.

A copy of what ``kernels/*/manifest.toml`` lists, for processes that plan without the kernels at hand;
``tests/contract/quantization/test_kernel_formats.py`` compares. Nothing else is offered or proposed.
"""

from __future__ import annotations

from collections.abc import Mapping

from wisp_plan.quantization.packed_format import PACKED_FORMATS, W8A8

_EVERY = ("bf16", *PACKED_FORMATS)

KERNEL_FORMATS: Mapping[str, tuple[str, ...]] = {
    "hopper": _EVERY,
    "ada": _EVERY,
    "ampere": _EVERY,
}
"""Formats by kernel folder: ``bf16`` and packed formats (:mod:`wisp_plan.quantization.packed_format`).

A generation that is not here is refused by the runtime.
"""


_WITH_W8A8 = ("hopper",)
"""Folders with kernels that multiply E4M3 weights by E4M3 activations."""


def kernel_formats(hardware: str | None) -> tuple[str, ...]:
    """Return the weight formats with kernels on ``hardware``; none of one that the runtime refuses.

    Behind them W8A8, where activations may be E4M3 too.

    Args:
        hardware: kernel folder; None: any GPU, which has what all of them have, and may have W8A8, whose
            activations take memory.
    """
    if hardware is not None:
        return KERNEL_FORMATS.get(hardware, ()) + ((W8A8,) if hardware in _WITH_W8A8 else ())
    first, *others = KERNEL_FORMATS.values()
    return *(name for name in first if all(name in formats for formats in others)), W8A8
