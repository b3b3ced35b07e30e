"""The file of ``--api-keys`` as ``wisp up`` reads it: warnings of lines that open nothing, and of no key."""

from __future__ import annotations

import logging
from pathlib import Path

from wisp_names.key_lines import KeyLine, read_lines, split_lines, warning_of

log = logging.getLogger(__name__)


def read_keys(file: Path) -> tuple[list[KeyLine], str]:
    """Return a file's keys as the gateway reads them, and a sentence on it or its lines if unreadable."""
    try:
        keys, problems = read_lines(split_lines(file.read_text()))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        return [], f"{file} cannot be read: {why}; mend that, or give another file with --api-keys"
    return keys, warning_of(str(file), problems)


class KeyFile:
    """A file of keys that is looked at again and again; logs what changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_keys: bool | None = None
        self._warning = ""

    def check(self) -> None:
        """Log once each that lines cannot be read, that no key is left, and that there are some again."""
        keys, warning = read_keys(self._path)
        if warning and warning != self._warning:
            log.warning("%s", warning)
        self._warning = warning
        before, self._has_keys = self._has_keys, bool(keys)
        if before == self._has_keys or before is None:
            return
        if keys:
            log.info("%s holds keys again", self._path)
        else:
            log.warning(
                "%s holds no API key that can be read any more: a file that is gone or unreadable keeps the "
                "last keys, an empty one lets nobody in. Write one key a line into it",
                self._path,
            )
