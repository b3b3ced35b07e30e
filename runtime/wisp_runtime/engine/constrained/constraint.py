"""Interface of a rule on the next token of one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from wisp_runtime.batch import Array

if TYPE_CHECKING:
    from wisp_runtime.engine.constrained.grammar import Grammar


class Constraint(Protocol):
    """Rule on the tokens of one answer. Its state depends on the generated tokens alone.

    The order of calls: ``grammar`` or ``fill`` for the first token, ``advance`` with that, and so on. They
    may come from different threads, one at a time. A preempted sequence keeps its rule as it is: tokens that
    are computed again are not generated again.
    """

    @property
    def is_over(self) -> bool:
        """Whether every token is allowed from now on."""
        ...

    @property
    def is_free(self) -> bool:
        """Whether the next two tokens are not restricted, whatever the first is: no mask is computed."""
        ...

    @property
    def error(self) -> str:
        """Reason why the answer cannot go on, and the remedy; empty while it can."""
        ...

    def advance(self, token: int) -> None:
        """Take in a generated token."""
        ...

    def grammar(self) -> Grammar | None:
        """Return the grammar that the next token follows; None where :meth:`fill` decides.

        Grammars of a step are computed together, in threads without Python's lock.
        """
        ...

    def allow_more(self, words: Array) -> None:
        """Set the bits of tokens that may come besides those of :meth:`grammar`; called behind it."""
        ...

    def fill(self, words: Array) -> None:
        """Clear the bits of tokens that may not come next; called where :meth:`grammar` is None.

        Args:
            words: ``[ceil(V / 32)]`` uint32, all bits set.
        """
        ...
