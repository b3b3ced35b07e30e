"""The file with the use of limits: kept over a restart, worth nothing to others, and never in the way."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from wisp_gateway.limits import state_file
from wisp_gateway.limits.errors import RateLimited
from wisp_gateway.limits.limiter import Limiter
from wisp_gateway.limits.state_file import StateFile
from wisp_names.key_limits import KeyLimits

LIMITS = KeyLimits(requests_per_minute=60, tokens_per_minute=600)


def process(path, boot_s, wall_s):
    """Return a limiter and its file as a process has them whose own clock shows ``boot_s``."""
    limiter = Limiter(lambda: boot_s)
    file = StateFile(path, limiter, lambda: wall_s)
    file.read()
    return limiter, file


def use(limiter, requests):
    for _ in range(requests):
        limiter.admit("f:a", LIMITS, 10).settle(None)


@pytest.mark.parametrize(
    ("away_s", "left"),
    [(0.0, 10), (5.0, 15), (49.0, 59), (3600.0, 60), (-100.0, 10)],  # the time of day may have been set back
)
def test_a_keys_limit_survives_a_restart_of_the_process_and_of_the_machine(tmp_path, away_s, left):
    limiter, file = process(tmp_path / "limits.json", boot_s=90_000.0, wall_s=1e9)
    use(limiter, 50)
    file.write(limiter.debts_s())
    limiter, _ = process(tmp_path / "limits.json", boot_s=3.0, wall_s=1e9 + away_s)
    quotas = limiter.quotas("f:a", LIMITS)
    assert (quotas["requests"].remaining, quotas["tokens"].remaining) == (left, 10 * left)
    use(limiter, left)
    with pytest.raises(RateLimited):
        use(limiter, 1)


def test_the_file_is_its_owners_alone_and_names_no_key(tmp_path):
    limiter, file = process(tmp_path / "limits.json", 1.0, 1e9)
    use(limiter, 1)
    file.write(limiter.debts_s())
    assert (tmp_path / "limits.json").stat().st_mode & 0o777 == 0o600
    document = json.loads((tmp_path / "limits.json").read_text())
    assert document == {"writtenAt": 1e9, "refillSeconds": {"f:a": {"requests": 1.0, "tokens": 1.0}}}
    assert [path.name for path in tmp_path.iterdir()] == ["limits.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        "{}",
        '{"writtenAt": "now", "refillSeconds": {}}',
        '{"writtenAt": 1, "refillSeconds": []}',
        '{"writtenAt": 1, "refillSeconds": {"a": 1}}',
        '{"writtenAt": NaN, "refillSeconds": {}}',
        '{"writtenAt": 1, "refillSeconds": {"a": {"requests": -1, "tokens": 0}}}',
        '{"writtenAt": 1, "refillSeconds": {"a": {"requests": true, "tokens": 0}}}',
        "[" * 100_000,
    ],
)
def test_a_file_that_no_gateway_wrote_is_left_out_with_a_warning(tmp_path, caplog, text):
    (tmp_path / "limits.json").write_text(text)
    with caplog.at_level(logging.WARNING):
        limiter, _ = process(tmp_path / "limits.json", 1.0, 1e9)
    assert "limits.json cannot be read" in caplog.text
    use(limiter, 60)


@pytest.mark.parametrize("written_at", ["1e9", "Infinity", str(10**400)])  # above every float
@pytest.mark.parametrize("debt", ["1e300", "Infinity", str(10**400)])
def test_a_debt_that_never_ends_is_cut(tmp_path, debt, written_at):
    document = '{"writtenAt": %s, "refillSeconds": {"f:a": {"requests": %s, "tokens": %s}}}'
    (tmp_path / "limits.json").write_text(document % (written_at, debt, debt))
    limiter, _ = process(tmp_path / "limits.json", 0.0, 1e9)
    assert limiter.debts_s() == {"f:a": (state_file.MAX_DEBT_S, state_file.MAX_DEBT_S)}


def test_a_folder_that_cannot_be_written_is_said_once_and_stops_nothing(tmp_path, caplog):
    limiter, file = process(tmp_path / "absent" / "limits.json", 1.0, 1e9)
    use(limiter, 1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            file.write(limiter.debts_s())
    assert caplog.text.count("cannot be kept") == 1


def test_it_is_written_while_keys_are_in_use_and_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(state_file, "PERIOD_S", 0.01)
    path = tmp_path / "limits.json"

    async def scene():
        limiter, file = process(path, 1.0, 1e9)
        running = asyncio.ensure_future(file.run())
        await asyncio.sleep(0.05)
        assert not path.exists()  # nobody has limits
        use(limiter, 1)
        async with asyncio.timeout(60):
            while not path.exists():
                await asyncio.sleep(0.01)
        use(limiter, 1)
        running.cancel()
        await asyncio.wait([running])
        assert json.loads(path.read_text())["refillSeconds"]["f:a"]["requests"] == 2.0

    asyncio.run(scene())
