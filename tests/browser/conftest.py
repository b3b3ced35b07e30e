"""Fixtures: one ``wisp up`` with SmolLM2 and scripted models for all tests, and a watched page for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright
from running_wisp import (
    Gateway,
    Script,
    Wisp,
    directory_with_key,
    example_model,
    manifest,
    own_address,
    scripted_model,
    until,
)
from watched_page import WatchedPage

KEY = "sk-page-0123456789abcdef"
TIMEOUT_S = 60
expect.set_options(timeout=TIMEOUT_S * 1000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", type=Path, help="Write the pictures of docs/ into this folder.")
    parser.addoption("--record", type=Path, help="Write the page's figures into this file.")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = playwright.chromium.launch(executable_path=path, args=["--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Script]:
    """Scripts of the models, by name."""
    folder = tmp_path_factory.mktemp("scripts")
    return {name: Script(folder / name) for name in ("scripted", "second", "sleeper", "broken")}


@pytest.fixture(scope="session")
def wisp(tmp_path_factory: pytest.TempPathFactory, scripts: dict[str, Script]) -> Iterator[Wisp]:
    folder = tmp_path_factory.mktemp("wisp")
    example = example_model()
    checkpoint = scripted_model(folder / "scripted-model", example)
    models = [manifest("smollm2", example)]
    models += [manifest(name, checkpoint, script) for name, script in scripts.items()]
    wisp = Wisp(folder, models, scripts["scripted"].folder.parent)
    yield wisp
    wisp.end()


@pytest.fixture
def script(scripts: dict[str, Script]) -> Script:
    """The script of the model ``scripted``."""
    return scripts["scripted"]


@pytest.fixture(scope="session")
def guarded(wisp: Wisp, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway over the same models that needs ``KEY``."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"tester:{KEY}\n")
    directory = wisp.state_dir / "directory.json"
    gateway = Gateway(
        wisp, keys.parent, "--host", own_address(), "--directory", directory, "--api-keys", keys
    )
    yield gateway
    gateway.end()


@pytest.fixture
def keys_of_mixed(tmp_path: Path) -> Path:
    """The file of keys that ``mixed`` reads anew at each change."""
    keys = tmp_path / "keys"
    keys.write_text(f"tester:{KEY}\n")
    return keys


@pytest.fixture
def mixed(wisp: Wisp, keys_of_mixed: Path) -> Iterator[Gateway]:
    """A gateway on this machine where ``second`` needs ``KEY`` and all others none."""
    wisp.wake("second")
    until(lambda: wisp.model("second")["state"] == "Ready", "the directory has the pod")
    directory = directory_with_key(wisp, "second", keys_of_mixed)
    gateway = Gateway(wisp, keys_of_mixed.parent, "--directory", directory)
    yield gateway
    gateway.end()


@pytest.fixture
def open_page(browser: Browser, wisp: Wisp) -> Iterator[Callable[..., WatchedPage]]:
    """Return a function that opens a page in a context of its own; all are checked at the test's end."""
    pages: list[WatchedPage] = []

    def open_(fragment: str = "", *, url: str = wisp.url, **context: Any) -> WatchedPage:
        settings = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"} | context
        page = browser.new_context(**settings).new_page()
        page.set_default_timeout(TIMEOUT_S * 1000)
        watched = WatchedPage(page, url)
        pages.append(watched)
        watched.goto(fragment)
        return watched

    yield open_
    try:
        for watched in pages:
            watched.check()
    finally:
        for watched in pages:
            watched.page.context.close()


@pytest.fixture(scope="session")
def bare_page(browser: Browser, wisp: Wisp) -> Iterator[Page]:
    """A page without any module of its own running."""
    page = browser.new_page()
    page.goto(f"{wisp.url}/page/vendor/vendor.json")
    yield page
    page.close()


@pytest.fixture
def call(bare_page: Page) -> Callable[..., Any]:
    """Return a function that evaluates an expression on a module ``m`` of the page."""

    def call_(module: str, expression: str, argument: Any = None) -> Any:
        script = f"argument => import('/page/{module}').then(async m => ({expression}))"
        return bare_page.evaluate(script, argument)

    return call_
