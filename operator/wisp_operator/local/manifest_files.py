"""Manifest files that ``wisp up`` serves, re-read when they change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wisp_operator.api import InferenceModel, manifests

Stamp = tuple[int, int, int]


class ManifestFiles:
    """YAML files and the models last read from them.

    Raises:
        ManifestError: one of them cannot be read or holds problems.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._stamps: list[Stamp | None] = []
        self.models: list[InferenceModel] = []
        self.read()

    @property
    def names(self) -> list[str]:
        """The files as the user named them."""
        return [str(path) for path in self._paths]

    def changed(self) -> bool:
        """Return whether a file changed since it was last read, even if it could not be parsed then."""
        return self._stamps != [_stamp(path) for path in self._paths]

    def read(self) -> list[InferenceModel]:
        """Read every file; on an error the models stay as they were.

        Raises:
            ManifestError: one of them cannot be read or holds problems.
        """
        self._stamps = [_stamp(path) for path in self._paths]
        self.models = [manifest.model for manifest in manifests.read_files(self._paths)]
        return self.models


def _stamp(path: Path) -> Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
