"""Every view on a phone, in the dark, by keyboard, and for axe."""

from __future__ import annotations

from pathlib import Path

import axe_playwright_python
import pytest
from chat import Chat
from playwright.sync_api import expect

VIEWS = {"models": "Models", "chat": "Chat", "live": "Live", "wakes": "Wakes", "requests": "Requests"}
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()


@pytest.fixture(scope="module", autouse=True)
def _content(browser, wisp, scripts):
    """Have something to see in every view: a conversation, a wake, requests."""
    scripts["scripted"].answer(
        "shown", "Some `code`, **bold**.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```py\nx = 1\n```"
    )
    page = browser.new_page()
    page.goto(f"{wisp.url}/#/chat")
    Chat(page, "scripted").ask("to be shown")
    page.close()


def loaded(page, title):
    """Wait until a view shows what it has."""
    expect(page).to_have_title(f"{title} · Wisp")
    expect(
        page.get_by_role("main").locator("article, table, .charts, .wakes, .chat-welcome, .empty").first
    ).to_be_visible()


def luminance(page):
    """Return the brightness of the page's background, 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(number) for number in colour[colour.index("(") + 1 : -1].split(",")[:3]) / 3


def violations(page):
    page.evaluate(AXE)
    found = page.evaluate("axe.run().then(result => result.violations)")
    return [
        f"{rule['id']}: {node['target']} {node['failureSummary']}" for rule in found for node in rule["nodes"]
    ]


@pytest.mark.parametrize("colour_scheme", ["light", "dark"])
def test_axe_finds_nothing_in_any_view(open_page, script, colour_scheme):
    script.answer(
        "shown",
        "<think>Hm.</think>Some `code`, **bold**.\n\n| a |\n|---|\n| 1 |\n\n```py\nx = 1\n```\n> quoted",
    )
    page = open_page("#/models", color_scheme=colour_scheme).page
    found = {}
    for view, title in VIEWS.items():
        page.evaluate("view => { location.hash = `#/${view}` }", view)
        loaded(page, title)
        if view == "chat":
            Chat(page, "scripted").ask("to be shown")
        found[view] = violations(page)
    assert not any(found.values()), found


def test_a_phone_shows_every_view_without_scrolling_sideways(open_page):
    page = open_page("#/models", **PHONE).page
    for view, title in VIEWS.items():
        page.evaluate("view => { location.hash = `#/${view}` }", view)
        loaded(page, title)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"], view
        for name in VIEWS.values():
            expect(
                page.get_by_role("navigation", name="Views").get_by_role("link", name=name)
            ).to_be_in_viewport()


def test_a_phone_can_chat(open_page, script):
    script.answer(
        "wide", "| a | b |\n|---|---|\n| " + "wide " * 60 + " | 2 |\n\n```\n" + "x" * 400 + "\n```\n"
    )
    page = open_page("#/chat", **PHONE).page
    answer = Chat(page, "scripted").ask("something wide")
    expect(answer.get_by_role("table")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["viewport"]["width"]
    expect(page.get_by_role("textbox", name="Message")).to_be_in_viewport()


def test_dark_follows_the_system_and_the_switch_outlives_a_reload(open_page):
    page = open_page("#/models", color_scheme="dark").page
    loaded(page, "Models")
    assert luminance(page) < 64
    page.get_by_role("button", name="Light", exact=True).click()
    assert luminance(page) > 192
    page.reload()
    loaded(page, "Models")
    assert luminance(page) > 192
    page.get_by_role("button", name="System colours").click()
    assert luminance(page) < 64


def test_the_keyboard_alone_reaches_a_view_and_an_answer(open_page, script):
    script.answer("keys", "Typed.")
    page = open_page("#/models").page
    loaded(page, "Models")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    chat_link = page.get_by_role("navigation", name="Views").get_by_role("link", name="Chat")
    for _ in range(8):
        page.keyboard.press("Tab")
        if chat_link.evaluate("link => link === document.activeElement"):
            break
    page.keyboard.press("Enter")
    chat = Chat(page, "scripted")
    chat.message.focus()
    page.keyboard.type("keys")
    page.keyboard.press("Enter")
    expect(chat.answers.last.get_by_text("Typed.")).to_be_visible()
