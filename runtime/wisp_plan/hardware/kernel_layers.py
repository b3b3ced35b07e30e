"""Refusal of layers and sizes that no GPU has kernels for; the CPU computes all of them.

No layer is listed today. A new one whose kernels come later gets a line here until they are there: a start on
a GPU, ``wisp fit`` and the operator refuse such a model in one sentence, before a weight is read.
"""

from __future__ import annotations

from collections.abc import Callable

from wisp_plan.errors import LayersUnsupported
from wisp_plan.hardware.kernel_limits import excessive_sizes
from wisp_plan.spec.layer import LayerSpec
from wisp_plan.spec.model import ModelSpec

HasPart = Callable[[LayerSpec], bool]

WITHOUT_KERNELS: dict[str, HasPart] = {}
"""Name of each part of a layer that lacks kernels, as messages have it, and the check that a layer has it."""


def missing_kernels(spec: ModelSpec) -> tuple[str, ...]:
    """Return the parts of a model that GPUs lack kernels for, by their names in messages."""
    layers = [group.spec for group in spec.groups()]
    return tuple(name for name, is_in in WITHOUT_KERNELS.items() if any(map(is_in, layers)))


def require_kernels(spec: ModelSpec) -> None:
    """Refuse a model with layers or sizes that no GPU has kernels for.

    Raises:
        LayersUnsupported: names them and the remedy.
    """
    remedy = "Serve it on the CPU (--device cpu), or choose another model."
    if missing := missing_kernels(spec):
        *others, last = missing
        names = f"{', '.join(others)} and {last}" if others else last
        raise LayersUnsupported(f"no GPU kernels for {names}, which {spec.architecture} has. {remedy}")
    if sizes := excessive_sizes(spec):
        raise LayersUnsupported(
            f"no GPU kernels for the sizes of this {spec.architecture}: {'; '.join(sizes)}. {remedy}"
        )
