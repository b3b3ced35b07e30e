"""Fixtures of every test folder."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # spec_changes, decode_batch
import expected_skips
import xdist_shares

# A shell has its background jobs ignore Ctrl-C, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

collect_ignore = ["browser", "clients"]  # environments of their own (make test-page, make test-clients)
IS_CI = bool(os.environ.get("CI"))

# A busy machine is no defect. In CI the examples are the same each time; elsewhere they wander and find more.
settings.register_profile("wisp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("wisp"), derandomize=True)
settings.load_profile("ci" if IS_CI else "wisp")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    xdist_shares.longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    return xdist_shares.make_scheduler(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> object:
    """Fail a run in CI that skipped a test which it should have run."""
    result = yield
    if _hidden(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := _hidden(config):
        terminalreporter.section("skipped, though CI must run it (tests/expected_skips.py)", red=True)
        terminalreporter.write_line("\n".join(lines))


def _hidden(config: pytest.Config) -> list[str]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return expected_skips.unexpected(reporter.stats.get("skipped", ())) if IS_CI and reporter else []


@pytest.fixture(autouse=True)
def root_level() -> Iterator[None]:
    """Give the root logger its level back, which a program's own set-up in a test's process changes."""
    level = logging.root.level
    yield
    logging.root.setLevel(level)


@pytest.fixture(scope="session")
def smollm2_dir() -> Path:
    """The folder of the example model; made on first use, which takes some ten seconds, then cached.

    Tests that ask for it carry the marker ``model``.
    """
    from wisp_runtime.convert.example import example_model

    return example_model()


@pytest.fixture(scope="session")
def smollm2_gguf(smollm2_dir: Path) -> Path:
    """The GGUF file that the example model is converted from; kept beside it."""
    from wisp_runtime.convert import example

    folder = smollm2_dir.with_name("smollm2-135m-instruct-gguf")
    folder.mkdir(exist_ok=True)
    file = folder / "model.gguf"
    with example._locked(folder / ".lock"):
        if not file.exists():
            example._fetch(folder).rename(file)
    return file
