"""Checks of a folder that cannot be used: ever more rarely, and soon where requests ask for it."""

import pytest

from wisp_operator.local.machine.path_preflight import Recheck, next_check


def test_a_folder_that_stays_broken_is_checked_ever_more_rarely():
    pauses, recheck, now = [], None, 1000.0
    for _ in range(7):
        recheck = next_check(recheck, now, took_s=0.3)
        pauses.append(recheck.at - now)
        now = recheck.at
    assert pauses == [2, 4, 8, 16, 32, 32, 32]
    assert next_check(recheck, now, took_s=20.0).asked_at == now + 80  # a slow check keeps nobody busy


@pytest.mark.parametrize(
    ("now", "is_asked", "is_due"), [(9, True, False), (10, True, True), (10, False, False), (40, False, True)]
)
def test_a_request_brings_the_next_check_forward(now, is_asked, is_due):
    assert Recheck(asked_at=10, at=40, pause_s=32).is_due(now, is_asked=is_asked) is is_due
