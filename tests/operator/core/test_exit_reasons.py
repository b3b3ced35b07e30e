"""Exit reasons: one vocabulary for the pods of a machine and of a cluster."""

import json

import pytest

from wisp_operator.core.exit_reasons import failure_of
from wisp_operator.core.observation import Failure

TOLD = json.dumps({"reason": "DoesNotFit", "message": "needs 17 GiB", "details": {"neededBytes": 17}})


@pytest.mark.parametrize(
    ("exit_code", "output", "stopped", "reason", "says"),
    [
        (3, TOLD, {}, "DoesNotFit", "needs 17 GiB"),
        (143, TOLD, {"deadline_s": 4.0}, "DoesNotFit", "needs 17 GiB"),  # its own words outrank ours
        (1, "", {}, "Crashed", "The process ended with exit code 1."),
        (0, "", {}, "Crashed", "exit code 0"),
        (1, "one\nTraceback: two", {}, "Crashed", "Last output: Traceback: two"),
        (1, '{"x": 1}', {}, "Crashed", "exit code 1"),  # JSON, but not ours
        (1, "[]", {}, "Crashed", "exit code 1"),
        (1, '{"reason": 5}', {}, "Crashed", "exit code 1"),
        (134, "", {}, "Killed", "SIGABRT"),
        (137, "", {}, "Killed", "SIGKILL"),
        (139, "", {}, "Killed", "SIGSEGV"),
        (143, "", {}, "Killed", "SIGTERM"),
        (143, "", {"deadline_s": 4.0}, "StartupTimedOut", "within 4 s (spec.rollout.startupDeadline)"),
        (0, "", {"deadline_s": 4.0, "why": "slow"}, "StartupTimedOut", "within 4 s"),
        (0, "", {"why": "/livez gave no good answer"}, "Killed", "stopped: /livez gave no good answer."),
    ],
)
def test_every_end_of_a_process_has_one_name_and_a_sentence(exit_code, output, stopped, reason, says):
    found = failure_of(exit_code, output, 50.0, **stopped)
    assert (found.reason, found.at, found.exit_code) == (reason, 50.0, exit_code)
    assert says in found.message


@pytest.mark.parametrize(("details", "kept"), [({"neededBytes": 17}, {"neededBytes": 17}), ("many", {})])
def test_the_numbers_of_a_termination_log_are_kept_if_they_are_a_map(details, kept):
    output = json.dumps({"reason": "DoesNotFit", "details": details})
    assert failure_of(3, output, 50.0) == Failure("DoesNotFit", "", 50.0, 3, kept)


def test_a_long_last_line_is_cut():
    assert len(failure_of(1, "x" * 9000, 50.0).message) < 400


@pytest.mark.parametrize(
    "output",
    [
        "[" * 4096,
        '{"reason":' * 400,
        json.dumps({"reason": "two words", "message": "m"}),
        json.dumps({"reason": "x" * 200, "message": "m"}),  # an Event's reason has 128 characters
        json.dumps({"reason": "a\nb"}),
    ],
)
def test_a_termination_log_that_is_none_is_output(output):
    failure = failure_of(1, output, 0.0)
    assert failure.reason == "Crashed"
    assert len(failure.message) < 500


def test_a_pods_message_is_one_bounded_line():
    forged = "m\n2026-11-22 12:00:00 ERROR   team/other: deleted\x1b[2J"
    failure = failure_of(1, json.dumps({"reason": "ModelNotFound", "message": forged + "x" * 9000}), 0.0)
    assert "\n" not in failure.message
    assert "\x1b" not in failure.message
    assert len(failure.message) <= 2048
    assert "\x1b" not in failure_of(1, "line\nlast \x1b[31m", 0.0).message
