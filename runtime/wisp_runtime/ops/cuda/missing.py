"""Ops that no GPU has kernels for yet: a model that needs one is refused before it is loaded.

:mod:`wisp_plan.hardware.kernel_layers` has the layers; a call from elsewhere says the same.
"""

from __future__ import annotations

from typing import NoReturn

from wisp_runtime.errors import KernelsMissing


class MissingMoe:
    """Router and experts of :class:`.protocol.moe.MoeOps`."""

    def expert_counts(self, *_arguments: object) -> NoReturn:
        """Refuse."""
        raise _missing("mixtures of experts")

    def route(self, *_arguments: object, **_named: object) -> NoReturn:
        """Refuse."""
        raise _missing("mixtures of experts")

    def mixture(self, *_arguments: object, **_named: object) -> NoReturn:
        """Refuse."""
        raise _missing("mixtures of experts")

    def scale_rows(self, *_arguments: object) -> NoReturn:
        """Refuse."""
        raise _missing("mixtures of experts")


def _missing(layers: str) -> KernelsMissing:
    return KernelsMissing(f"no kernels for {layers} on a GPU. Serve the model with --device cpu.")
