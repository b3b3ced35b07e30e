"""Nodes of the prefix tree."""

from __future__ import annotations


class Node:
    """The end of one block of tokens; its children by their tokens, compared in full.

    Attributes:
        blocks: block of each group; -1: evicted.
        cursors: number of sequences that have published up to here.
        snapshot: state slot; -1: none.
    """

    __slots__ = ("blocks", "children", "cursors", "parent", "snapshot", "tokens")

    def __init__(self, parent: Node | None, tokens: tuple[int, ...], blocks: list[int]) -> None:
        self.parent = parent
        self.tokens = tokens
        self.blocks = blocks
        self.children: dict[tuple[int, ...], Node] = {}
        self.cursors = 0
        self.snapshot = -1
