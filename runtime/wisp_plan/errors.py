"""Errors that the plan raises on purpose.

PlanError                   ``message`` names the error, its place and the remedy
├── ConfigInvalid           config.json: a key is missing, mistyped or impossible; ``key`` names it
│   ├── ConfigMissing       no config.json, or it cannot be opened
│   ├── ConfigDamaged       not JSON, or longer than any model's
│   └── UnknownArchitecture a model without code here
├── CheckpointInvalid       the weights cannot be used as they are
│   ├── CheckpointMissing   no safetensors file, or an index names one that is not there
│   ├── HeaderInvalid       a safetensors header or index that contradicts the format or itself
│   ├── FileTruncated       the file ends early; ``missing_bytes`` says by how much
│   └── TensorsMismatch     complete, but not the tensors that this model needs
├── CannotShard             weights that do not split over as many GPUs
├── RequestInvalid          a fit request that no amount of memory would satisfy
│   └── LayersUnsupported   layers that no GPU has kernels for
├── SizeInvalid             text that is not a number of bytes
├── UnknownCard             a GPU that is not in the catalogue
└── UnknownShape            a model's name that is not among the named shapes
"""

from __future__ import annotations

from typing import Self


class PlanError(ValueError):
    """An impossible model, file or request; ``message`` names the remedy."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConfigInvalid(PlanError):
    """A key of ``config.json`` is missing, mistyped or impossible; ``key`` names it.

    Messages of :func:`.families.config.parse_config` begin with ``config.json``; :meth:`at` adds its folder.
    """

    def __init__(self, message: str, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key

    def at(self, where: str) -> Self:
        """Return the same error with the location of ``config.json``: a folder, or a URI."""
        return type(self)(f"{where.rstrip('/')}/{self.message}", key=self.key)


class ConfigMissing(ConfigInvalid):
    """There is no ``config.json`` where a model should be, or it cannot be opened."""


class ConfigDamaged(ConfigInvalid):
    """``config.json`` is not JSON, or longer than any model's."""


class UnknownArchitecture(ConfigInvalid):
    """A model without code here."""


class CheckpointInvalid(PlanError):
    """The weights cannot be used as they are."""


class CheckpointMissing(CheckpointInvalid):
    """No safetensors file, or an index names one that is not there."""


class HeaderInvalid(CheckpointInvalid):
    """A safetensors header or index that contradicts the format or itself."""


class FileTruncated(CheckpointInvalid):
    """A safetensors file ends before its tensors do; ``missing_bytes`` says by how much."""

    def __init__(self, message: str, *, missing_bytes: int) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


class TensorsMismatch(CheckpointInvalid):
    """The checkpoint is complete, but lacks tensors that the model needs or has them in other shapes."""


class CannotShard(PlanError):
    """A model's weights do not split into equal shares for as many GPUs."""


class RequestInvalid(PlanError):
    """A fit request that no amount of memory would satisfy."""


class LayersUnsupported(RequestInvalid):
    """A model has layers that no GPU has kernels for; the CPU computes them."""


class SizeInvalid(PlanError):
    """Text that is not a number of bytes."""


class UnknownCard(PlanError):
    """A GPU that is not in the catalogue."""


class UnknownShape(PlanError):
    """A name that is not among the named shapes."""
