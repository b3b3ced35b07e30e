"""Break a stream of text between words at the width of a terminal.

Pure: text in, text out. Text appears as it comes; a word that meets the edge is moved to the next line.
"""

from __future__ import annotations

import unicodedata


class Wrapper:
    """State of the cursor: its column, and the unfinished word."""

    def __init__(self, width: int) -> None:
        self._width = max(20, width)
        self._column = 0
        self._word = ""

    def feed(self, text: str) -> str:
        """Return what to print for ``text``; may erase the beginning of a word with backspaces."""
        return "".join(map(self._character, text))

    def _character(self, character: str) -> str:
        if character == "\n":
            self._column, self._word = 0, ""
            return character
        cells = cells_of(character)
        if character.isspace():
            self._word = ""
            if self._column + cells >= self._width:
                self._column = 0
                return "\n"
            self._column += cells
            return character
        moved = self._move_word() if self._column + cells > self._width else ""
        self._word += character
        self._column += cells
        return moved + character

    def _move_word(self) -> str:
        """Begin a new line, taking the unfinished word along; one as wide as the line is broken."""
        cells = sum(map(cells_of, self._word))
        if cells >= self._width:
            self._column, self._word = 0, ""
            return "\n"
        self._column = cells
        return "\b" * cells + " " * cells + "\n" + self._word


def cells_of(character: str) -> int:
    """Columns that a character takes on a terminal."""
    if unicodedata.combining(character) or character in "\u200d\ufe0f":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
