"""Grants of bare names: the names that one model holds, and a sentence if its served name is not among them.

Pure. A sentence names another model only within the namespace: whoever reads it may not see the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from wisp_names.bare_names import RESERVED_S, BareNames, Claim, is_qualified

MAX_LEAVING = 6
"""Names that a model keeps beside those of its spec: each is a change of ``servedName`` in one rollout."""
_REMEDY = "It is reached as {key}; for a bare name choose another spec.model.servedName."


@dataclass(frozen=True, slots=True)
class Grant:
    """Decision on one model's names.

    Attributes:
        names: bare names that it holds, sorted.
        refused: those that it asks for and does not hold, sorted.
        refusal: sentence that says why its served name is not one of them; empty if it is.
    """

    names: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    refusal: str = ""


def leaving_names(
    asked: Collection[str], granted: Collection[str], served_name: str, pod_names: Iterable[str | None]
) -> frozenset[str]:
    """Return the names that a model keeps though its spec no longer asks for them.

    They are those granted before, until every pod has the new served name: so a client of the old one is
    answered as long as a rollout takes.

    Args:
        asked, granted: names that the spec asks for, and those granted before.
        pod_names: served name of each pod that does not drain; None: it has not reported one yet.
    """
    if all(name == served_name for name in pod_names):
        return frozenset()
    return frozenset(sorted(set(granted) - set(asked))[:MAX_LEAVING])


def foreign_meaning(served_name: str, key: str) -> str:
    """Return why no request for ``served_name`` is one for the model ``key``; empty if its form allows it."""
    if not is_qualified(served_name) or served_name == key:
        return ""
    return f"A request for {served_name!r} means the model of that namespace and name, and no other."


def grant(names: BareNames, claim: Claim, served_name: str) -> Grant:
    """Return the decision on the model of ``claim``, which is among those that ``names`` has decided."""
    held = tuple(sorted(name for name in claim.names if names.holder(name) == claim.key))
    refused = tuple(sorted(claim.names - claim.leaving - set(held)))
    if served_name in held or served_name == claim.key:
        return Grant(held, refused)
    return Grant(held, refused, f"{_reason(names, claim, served_name)} {_REMEDY.format(key=claim.key)}")


def _reason(names: BareNames, claim: Claim, served_name: str) -> str:
    if meaning := foreign_meaning(served_name, claim.key):
        return meaning
    holder = names.holder(served_name)
    if holder is None:
        return (
            f"{served_name!r} was the name of a model of another namespace that is gone; it is kept for that "
            f"namespace for {RESERVED_S / 60:g} minutes."
        )
    is_near = holder.partition("/")[0] == claim.namespace
    return f"{served_name!r} is the name of {holder if is_near else 'a model of another namespace'}."
