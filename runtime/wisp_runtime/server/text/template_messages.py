"""Messages between the server and its template processes, and the bounds on a rendering.

A frame to the process is its length and JSON; a frame from it is an outcome, a length and text. Nothing
that comes back is unpickled or evaluated: a template is a program of strangers.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from enum import IntEnum

MAX_SOURCE_CHARS = 1 << 20
MAX_OUTPUT_CHARS = 16 << 20
MAX_ANSWER_BYTES = 4 * MAX_OUTPUT_CHARS  # a character has at most four bytes
MAX_REASON_CHARS = 1000
MEMORY_BYTES = 512 << 20  # address space of the process, interpreter included
CPU_S = 2  # processor time of one rendering, or of compiling
WALL_S = 10.0  # elapsed time of the same: a machine under load gives less than a processor

REQUEST = struct.Struct(">I")
ANSWER = struct.Struct(">BI")

TOO_MUCH_MEMORY = f"it needs more than {MEMORY_BYTES >> 20} MiB of memory"
TOO_MUCH_CPU = f"it needs more than {CPU_S} s of processor time"
TOO_LONG = f"it was not done after {WALL_S:g} s"

_CODE = re.compile(r"\{[%{](.*?)[%}]\}", re.DOTALL)
_STRINGS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)


class TemplateFailed(Exception):
    """The template refused the messages, or cannot be run."""


@dataclass(frozen=True)
class ChatTemplate:
    """A model's chat template as it was read.

    Attributes:
        source: Jinja2 text.
        special_tokens: ``bos_token``, ``eos_token`` and the like, as the template may name them.
    """

    source: str
    special_tokens: dict[str, str]

    def reads(self, name: str) -> bool:
        """Return whether the template's code, not its texts, has the name of a variable (``tools``)."""
        code = " ".join(_CODE.findall(self.source))
        return re.search(rf"(?<![\w.]){name}\b", _STRINGS.sub("''", code)) is not None

    def reads_field(self, name: str) -> bool:
        """Return whether the template's code reads a field of something: ``message.thinking``."""
        code = " ".join(_CODE.findall(self.source))
        return re.search(rf"""\.{name}\b|\[(['"]){name}\1\]""", code) is not None


class Outcome(IntEnum):
    """Outcome of a compilation or a rendering."""

    DONE = 0
    FAILED = 1
    OUT_OF_MEMORY = 2  # the process ends after it: its heap may not shrink again
