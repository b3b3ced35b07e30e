"""File with the use of keys' limits, so that a restart gives no key a second minute.

The file holds keys' names, the file or Secret that has each, and times, but no key. It is written every
second while keys are in use, and at the end. A process that is killed loses a second of use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from wisp_gateway.limits.limiter import Limiter

log = logging.getLogger(__name__)

PERIOD_S = 1.0
# Longest time that a file can lock a key out: the debt of 72 answers of MAX_ANSWER_MINUTES, charged at once.
# A longer one, as of a damaged file, is reduced to it.
MAX_DEBT_S = 43_200.0
MAX_FILE_BYTES = 16 * 2**20


class StateFile:
    """Copy of a limiter's use on disk.

    Args:
        wall_clock: reader of the time of day, which lasts over processes, in seconds.
    """

    def __init__(self, path: Path, limiter: Limiter, wall_clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._limiter = limiter
        self._wall_clock = wall_clock
        self._is_empty = True
        self._has_warned = False

    def read(self) -> None:
        """Restore the use in the file; without a file, or with one that no gateway wrote, none."""
        try:
            if self._path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError("it is too large")
            document = json.loads(self._path.read_text())
            past_s = max(0.0, self._wall_clock() - _number(document["writtenAt"]))
            debts_s = {
                str(name): (_left(debt["requests"], past_s), _left(debt["tokens"], past_s))
                for name, debt in document["refillSeconds"].items()
            }
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            log.warning("use of keys' limits in %s cannot be read (%r); all begin anew", self._path, error)
            return
        self._limiter.restore(debts_s)

    async def run(self) -> None:
        """Write every second until cancelled, and once more then; a slow disk delays no request."""
        try:
            while True:
                await asyncio.sleep(PERIOD_S)
                debts_s = self._limiter.debts_s()
                await asyncio.to_thread(self.write, debts_s)
        finally:
            self.write(self._limiter.debts_s())

    def write(self, debts_s: dict[str, tuple[float, float]]) -> None:
        """Write the file, unless there was no use before and is none now."""
        if not debts_s and self._is_empty:
            return
        try:
            self._replace(_document(debts_s, self._wall_clock()))
        except OSError as error:
            if not self._has_warned:
                log.warning("use of keys' limits cannot be kept in %s: %s", self._path, error)
            self._has_warned = True
            return
        self._is_empty, self._has_warned = not debts_s, False

    def _replace(self, text: str) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            os.replace(name, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise


def _document(debts_s: dict[str, tuple[float, float]], wall_s: float) -> str:
    refills = {
        name: {"requests": round(requests_s, 6), "tokens": round(tokens_s, 6)}
        for name, (requests_s, tokens_s) in debts_s.items()
    }
    return json.dumps({"writtenAt": wall_s, "refillSeconds": refills})


def _left(value: Any, past_s: float) -> float:
    return max(0.0, min(_number(value), MAX_DEBT_S) - past_s)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{value!r} is no time")
    return float(min(value, sys.float_info.max))  # an integer may be larger than every float
