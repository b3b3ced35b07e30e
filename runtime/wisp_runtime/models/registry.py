"""Class of the decoder that runs a model.

Families differ in their layers, not in their decoder; one that needs a class of its own gets a line here.
"""

from __future__ import annotations

from wisp_plan.spec.model import ModelSpec
from wisp_runtime.layers.registry import require_layers
from wisp_runtime.models.decoder import Decoder


def model_class(spec: ModelSpec) -> type[Decoder]:
    """Return the class that runs ``spec``.

    Raises:
        ModelUnsupported: there is no code for one of its layers.
    """
    require_layers(spec.layers)
    return Decoder
