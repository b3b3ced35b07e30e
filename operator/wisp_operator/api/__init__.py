"""The InferenceModel API: types, parsing, rules, YAML files."""

from wisp_operator.api.parser import parse
from wisp_operator.api.types import (
    API_VERSION,
    GROUP,
    KIND,
    PLURAL,
    VERSION,
    EnvVar,
    Gpu,
    InferenceModel,
    ModelSource,
    Runtime,
    Scaling,
    Spec,
    Toleration,
)

__all__ = [
    "API_VERSION",
    "GROUP",
    "KIND",
    "PLURAL",
    "VERSION",
    "EnvVar",
    "Gpu",
    "InferenceModel",
    "ModelSource",
    "Runtime",
    "Scaling",
    "Spec",
    "Toleration",
    "parse",
]
