"""Errors of the control plane, as one tree.

    WispError
    ├── InvalidModel      an InferenceModel that breaks the API: every problem, with its path
    ├── ManifestError     files that hold no valid InferenceModels: every problem, with its line
    ├── SourceError       config.json or the safetensors headers of a model could not be read
    ├── cluster: access.api_server.ApiError, access.writer.NotLeading, config.BadSetting
    ├── local: pod_template.NotLocal, session_folder.FolderTaken, session_folder.FolderUnwritable,
    │   admission.KeysMissing, admission.ServedNameTaken, machine.ports.PortTaken, machine.hardware.NoGpu,
    │   gateway.process.GatewayFailed: `wisp up` cannot start
    ├── core: access.tokens.TokenKeysInvalid
    └── cli: gateway_client.GatewayUnreachable, gateway_client.RequestRefused, commands.demo.DemoFailed,
        commands.up.NoBrowser

Every message names the problem, its place, and the remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a manifest.

    Attributes:
        path: field, as users write it: ``spec.gpu.count``, ``spec.runtime.env[0].name``; empty for
            the document as a whole.
        message: the problem, and the values that are allowed.
        at: path of the field at fault, where that is more exact than ``path``.
    """

    path: str
    message: str
    at: str = ""

    def __str__(self) -> str:
        names_itself = not self.path or self.message.startswith(self.path)
        return self.message if names_itself else f"{self.path}: {self.message}"


class WispError(Exception):
    """Anything the control plane reports to a user."""


class InvalidModel(WispError):
    """An InferenceModel that breaks the API; carries every problem found, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class ManifestError(WispError):
    """Files that do not hold valid InferenceModels; each line reads ``FILE:LINE: PATH: MESSAGE``."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(lines)
        super().__init__("\n".join(self.lines))


class SourceError(WispError):
    """A model's ``config.json`` or safetensors headers could not be read from ``spec.model.uri``."""
