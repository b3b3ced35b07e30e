"""The form of an attack: one function, the findings it repeats, and the neighbour's view while it runs.

::

    @attack("A4")
    def test_a_header_value_without_an_end(gateway):
        assert gateway.connect().flood(b"GET /livez HTTP/1.1\\r\\na: ", b"x" * 65536) < 1 * MIB

The function attacks its target, and may assert what the attacker gets. The decorator watches the target's
neighbours from before the first byte until after the last, and fails if one of them was hurt.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from neighbour import Target

SETTLE_S = 0.4
"""Time watched after the attack: what it left in the target's queues is worked off then."""
ATTEMPTS = 2
"""A gap on a machine that is busy with other work is no finding; the same gap twice is."""

Attack = Callable[..., None]


def attack(*findings: str) -> Callable[[Attack], Attack]:
    """Make a test of an attack on the fixture that is a :class:`.Target`.

    Args:
        findings: findings that the attack repeats, as findings.md begins their rows (``A4``, ``use 7``);
            ``E`` for an attack of the review that failed, ``new`` for one of our own.
    """

    def decorate(function: Attack) -> Attack:
        @functools.wraps(function)
        def run(**arguments: Any) -> None:
            targets = [value for value in arguments.values() if isinstance(value, Target)]
            for attempt in range(ATTEMPTS):
                for target in targets:
                    target.begin_watch()
                function(**arguments)
                time.sleep(SETTLE_S)
                harm = [line for target in targets for line in target.end_watch()]
                if not harm:
                    return
                if not all(line.is_gap for line in harm) or attempt == ATTEMPTS - 1:
                    break
            raise AssertionError(
                f"{', '.join(findings)}: the neighbours were hurt:\n"
                + "\n".join(f"  {line}" for line in harm)
            )

        return run

    return decorate
