"""Check the grammars of requests in threads, within a time, before anything is computed for them."""

from __future__ import annotations

import asyncio
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from wisp_runtime.engine.constrained.limits import MAX_GRAMMAR_BYTES, MAX_PROPERTIES, why_refused
from wisp_runtime.server.api.errors import ApiError, bad_request, unavailable
from wisp_runtime.server.structured.fields import StructuredFields

if TYPE_CHECKING:
    from wisp_runtime.server.structured.structure import Structure

MAX_CHECK_S = 2.0
MAX_QUEUE_S = 10.0
CHECKED_AT_A_TIME = 2
MAX_REMEMBERED = 4096  # digests; a request has one a tool, and one of all of its tools together
_FORMATS = "date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid or uri"
_REMEDIES = {
    "Unimplemented keys": "Leave these keywords out of the schema and check them in the client",
    "Unknown format": f"Use a pattern, or one of the formats {_FORMATS}",
    "oneOf constraints": "Make its branches exclude each other by a required constant, or use anyOf",
    "regex": "Correct it; there is no look-around, word boundary or back-reference",
    "Current row has": "The schema has too many optional properties at one place: require them, or nest them",
    "Unsatisfiable": "Correct the schema so that some answer follows it",
}
_SIMPLIFY = "Correct it, or make it simpler"
_POSITION = re.compile(r'^at 1\(\d+\): invalid regex ".*" \(in regex\): ', re.DOTALL)
"""Position of a regular expression in the grammar that is made of it: nothing a client has seen."""


class GrammarChecks:
    """Checks of one server; texts that were sound lately are not checked again."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._turns = asyncio.Semaphore(CHECKED_AT_A_TIME)
        self._sound: OrderedDict[bytes, None] = OrderedDict()

    async def constraint_of(self, request: StructuredFields) -> str | None:
        """Return the grammar that the answer to ``request`` must follow, checked; None for any text.

        Raises:
            ApiError: errors of :func:`.structure.structure_of` and :meth:`check`.
        """
        if not request.model_fields_set & StructuredFields.model_fields.keys():
            return None
        from wisp_runtime.server.structured.structure import structure_of  # few requests prescribe a format

        structure = structure_of(request)
        if structure is None:
            return None
        await self.check(structure)
        return structure.grammar

    async def check(self, structure: Structure) -> None:
        """Check that an answer can follow ``structure``.

        Raises:
            ApiError: 400 with the field and the reason, or 503 where others' checks take too long.
        """
        text, param = structure.grammar, structure.param
        digest = sha256(text.encode()).digest()
        if digest in self._sound:
            self._sound.move_to_end(digest)
            return
        if why := _too_large(text):
            raise refused(param, why)
        if why := await self._checked(text, param):
            raise refused(param, why, _places(why, text))
        self._sound[digest] = None
        while len(self._sound) > MAX_REMEMBERED:
            self._sound.popitem(last=False)

    def close(self) -> None:
        """Start no further check."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _checked(self, text: str, param: str) -> str:
        try:
            async with asyncio.timeout(MAX_QUEUE_S):
                await self._turns.acquire()
        except TimeoutError as error:
            raise unavailable(
                "Too many grammars are being checked; try again.", "grammars_busy", 1
            ) from error
        self._threads = self._threads or ThreadPoolExecutor(CHECKED_AT_A_TIME, "grammar-check")
        job = asyncio.get_running_loop().run_in_executor(self._threads, why_refused, text)
        job.add_done_callback(lambda _: self._turns.release())
        try:
            return await asyncio.wait_for(asyncio.shield(job), MAX_CHECK_S)
        except TimeoutError as error:
            raise refused(param, f"compiling it takes more than {MAX_CHECK_S:g} s") from error


def refused(param: str, why: str, places: Sequence[str] = ()) -> ApiError:
    """Return the error of a grammar that is refused.

    Args:
        param: field that prescribes the format.
        why: reason, as the compiler says it.
        places: JSON pointers into the field's schema; none where the reason names no place.
    """
    remedy = next((remedy for start, remedy in _REMEDIES.items() if start in why), _SIMPLIFY)
    why = _POSITION.sub("", why).rstrip(".") + (f", at {', '.join(places)}" if places else "")
    return bad_request(f"No answer can be held to {param!r}: {why}. {remedy}.", param, "invalid_grammar")


def _places(why: str, grammar: str) -> list[str]:
    from wisp_runtime.server.structured.places import places_of

    [part, *others] = json.loads(grammar)["grammars"]
    return [] if others or "json_schema" not in part else places_of(why, part["json_schema"])


def _too_large(text: str) -> str:
    """Return why a grammar is too large to be compiled in time; an empty text if it is not."""
    size = len(text.encode())
    if size > MAX_GRAMMAR_BYTES:
        return f"it has {size} bytes, and at most {MAX_GRAMMAR_BYTES} are compiled"
    if (count := _properties(json.loads(text))) > MAX_PROPERTIES:
        return f"it has {count} properties, and at most {MAX_PROPERTIES} are compiled"
    return ""


def _properties(value: Any) -> int:
    """Return the number of properties that a schema defines anywhere."""
    count, rest = 0, [value]
    while rest:
        inner = rest.pop()
        if isinstance(inner, dict):
            properties = inner.get("properties")
            count += len(properties) if isinstance(properties, dict) else 0
            rest += inner.values()
        elif isinstance(inner, list):
            rest += inner
    return count
