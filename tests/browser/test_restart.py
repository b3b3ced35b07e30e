"""A gateway that ends and comes back: the page says so, keeps what it has, and goes on."""

from __future__ import annotations

from chat import Chat
from playwright.sync_api import expect

LOST = ["net::ERR_", "500 (", "503 ("]


def test_the_page_survives_the_gateways_restart(open_page, wisp):
    watched = open_page("#/models")
    watched.expected = LOST
    card = watched.page.get_by_role("article", name="scripted", exact=True)
    expect(card).to_be_visible()
    banner = watched.page.get_by_text("Trying again")
    wisp.restart_gateway(lambda: expect(banner).to_be_visible())
    expect(banner).to_have_count(0)
    expect(card).to_be_visible()


def test_an_answer_that_a_restart_cuts_off_is_kept_and_can_be_asked_for_again(open_page, wisp, script):
    never, _ = script.wait()
    script.answer("cut off", "The first half. ", never)
    watched = open_page("#/chat")
    watched.expected = LOST
    chat = Chat(watched.page, "scripted")
    answer = chat.send("cut off")
    expect(answer.get_by_text("The first half.")).to_be_visible()
    wisp.restart_gateway(lambda: expect(answer.get_by_role("alert")).to_contain_text("connection was lost"))
    expect(answer.get_by_text("The first half.")).to_be_visible()
    script.answer("cut off", "All of it.")
    expect(watched.page.get_by_text("Trying again")).to_have_count(0)
    answer.get_by_role("button", name="Regenerate").click()
    expect(answer.get_by_text("All of it.")).to_be_visible()
