"""Field types that the API uses in more than one place, each with its limits."""

from __future__ import annotations

from typing import Annotated

from wisp_operator.api.schema_parser import Range, Text

Count = Annotated[int, Range(0, 1000)]
ObjectName = Annotated[
    str, Text(253, r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "a name of lower-case letters, digits, '-' and '.'")
]
SecretKeyName = Annotated[str, Text(253, r"^[-._a-zA-Z0-9]+$", "a key of letters, digits, '-', '_' and '.'")]
EnvName = Annotated[str, Text(128, r"^[A-Za-z_][A-Za-z0-9_]*$", "a name of letters, digits and '_'")]
LabelValue = Annotated[
    str,
    Text(63, r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", "a Kubernetes label value", min_length=0),
]
GpuProduct = Annotated[
    str, Text(63, r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", "a GPU as the node label names it")
]
LabelKey = Annotated[
    str,
    Text(
        317,
        r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$",
        "the key of a Kubernetes label",
    ),
]
Annotation = Annotated[str, Text(4096, min_length=0)]
