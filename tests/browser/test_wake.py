"""Wakes: watched from zero to the first token, with SmolLM2 and with a start-up that the test holds."""

from __future__ import annotations

import re

from chat import Chat
from playwright.sync_api import expect


def card_of(page, name):
    return page.get_by_role("article", name=name, exact=True)


def stop(card, name):
    """Stop a model by its card, whose count of running requests lags: confirm it where the card asks."""
    card.get_by_role("button", name=f"Stop {name}").click()
    asleep, confirm = card.get_by_text("Asleep", exact=True), card.get_by_role("button", name="Stop it")
    expect(asleep.or_(confirm).first).to_be_visible()
    if confirm.is_visible():
        confirm.click()
    expect(asleep).to_be_visible()


def test_a_message_wakes_smollm2_from_zero_and_shows_it_to_the_first_token(open_page):
    page = open_page("#/models").page
    expect(card_of(page, "smollm2").get_by_text("Asleep", exact=True)).to_be_visible()
    card_of(page, "smollm2").get_by_role("link", name="Chat with smollm2").click()
    chat = Chat(page)
    expect(page.get_by_role("combobox", name="Model", exact=True)).to_have_value("smollm2")
    chat.set(Temperature="0", Max_tokens="16")
    answer = chat.send("What is the capital of France?")
    expect(answer.get_by_text("Waking smollm2")).to_be_visible()
    expect(answer.get_by_role("progressbar", name="Start of smollm2")).to_be_visible()
    chat.ended(answer)
    expect(answer.locator(".md")).not_to_be_empty()
    expect(answer.get_by_text("woke the model")).to_be_visible()
    page.get_by_role("link", name="Wakes").click()
    wake = page.get_by_role("main").get_by_role("listitem").filter(has_text="default/smollm2")
    expect(wake.get_by_text("Ready", exact=True)).to_be_visible()
    expect(wake.get_by_text("Weights")).to_be_visible()
    page.get_by_text("What happens in each phase").click()
    expect(page.get_by_text("Weights go from disk into memory.")).to_be_visible()
    page.get_by_role("link", name="Requests").click()
    row = page.get_by_role("row").filter(has_text="smollm2")
    expect(row.get_by_role("cell", name="200")).to_be_visible()
    expect(row.get_by_text("for a wake")).to_be_visible()
    expect(page.get_by_text("France")).to_have_count(0)


def test_a_held_wake_shows_its_phase_and_its_progress_everywhere(open_page, scripts):
    with scripts["sleeper"].held_wake():
        page = open_page("#/models").page
        card = card_of(page, "sleeper")
        card.get_by_role("button", name="Wake sleeper").click()
        expect(card.get_by_text("Loading weights 62%")).to_be_visible()
        expect(card.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "62")
        before = card.locator(".wake-line .number").inner_text()
        expect(card.locator(".wake-line .number")).not_to_have_text(before)
        expect(card.locator(".wake-line .number")).to_have_text(re.compile("^[1-9]"))  # a second at least
        chat = Chat(open_page("#/chat").page, "sleeper")
        answer = chat.send("hello")
        expect(answer.get_by_text("Waking sleeper")).to_be_visible()
        expect(answer.get_by_text("62%")).to_be_visible()
        expect(answer.get_by_text("It was waking already")).to_be_visible()
    expect(answer.get_by_text("sleeper was asked: hello")).to_be_visible()
    expect(card.get_by_text("Ready", exact=True)).to_be_visible()
    stop(card, "sleeper")


def test_a_stop_under_a_request_asks_first_and_lets_it_end(open_page, scripts):
    rest, go_on = scripts["sleeper"].wait()
    scripts["sleeper"].answer("held", "Begun", rest, " and ended.")
    answer = Chat(open_page("#/chat").page, "sleeper").send("to be held")
    expect(answer.get_by_text("Begun")).to_be_visible()
    page = open_page("#/models").page
    card, dialog = card_of(page, "sleeper"), page.get_by_role("dialog")
    expect(card.get_by_text("1 running")).to_be_visible()
    card.get_by_role("button", name="Stop sleeper").click()
    expect(dialog.get_by_text("One request is running.")).to_be_visible()
    dialog.get_by_role("button", name="Keep it running").click()
    expect(dialog).to_have_count(0)
    expect(card.get_by_role("button", name="Stop sleeper")).to_be_focused()
    expect(card.get_by_text("1 running")).to_be_visible()
    card.get_by_role("button", name="Stop sleeper").click()
    with page.expect_response(re.compile("/state/stop/")) as stopped:
        dialog.get_by_role("button", name="Stop it").click()
    assert stopped.value.ok
    expect(dialog).to_have_count(0)
    expect(card.get_by_text("Asleep", exact=True)).to_be_visible()  # its pod drains
    go_on()
    expect(answer.get_by_text("Begun and ended.")).to_be_visible()


def test_a_model_that_fails_shows_its_reason_and_a_remedy(open_page, scripts):
    scripts["broken"].fail(
        "DoesNotFit", "needs 24 GiB for a context of 8192 tokens, this machine has 5 GiB free"
    )
    page = open_page("#/models").page
    card = card_of(page, "broken")
    card.get_by_role("button", name="Wake broken").click()
    expect(card.get_by_text("Does not fit")).to_be_visible()
    expect(card.get_by_text("Needs 24 GiB")).to_be_visible()
    expect(card.get_by_text("runtime.maxContext")).to_be_visible()


def test_a_message_to_a_model_that_fails_shows_the_reason(open_page, scripts):
    scripts["broken"].fail(
        "DoesNotFit", "needs 24 GiB for a context of 8192 tokens, this machine has 5 GiB free"
    )
    watched = open_page("#/chat")
    watched.expected = ["503 (Service Unavailable)"]
    answer = Chat(watched.page, "broken").send("hello")
    expect(answer.get_by_role("alert")).to_contain_text("needs 24 GiB")
    expect(answer.get_by_role("button", name=re.compile("Try again"))).to_be_visible()
