"""Which class runs which family; adding a family is one line here and one file beside it."""

from __future__ import annotations

from wisp_plan.spec.model import ModelSpec
from wisp_runtime.errors import ModelUnsupported
from wisp_runtime.models.llama import Llama

FAMILIES: dict[str, type[Llama]] = {"llama": Llama, "mistral": Llama, "qwen2": Llama, "qwen3": Llama}


def model_class(spec: ModelSpec) -> type[Llama]:
    """Return the class that runs ``spec``.

    Raises:
        ModelUnsupported: its family has no code here.
    """
    if spec.family not in FAMILIES:
        raise ModelUnsupported(
            f"no code for models of the family {spec.family!r} ({spec.architecture}); there is code for "
            f"{', '.join(FAMILIES)}. Choose a model of one of these."
        )
    return FAMILIES[spec.family]
