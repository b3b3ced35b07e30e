"""A gateway with keys: the page asks for one, refuses a wrong one, and forgets it with the tab."""

from __future__ import annotations

import pytest
from chat import Chat
from conftest import KEY
from playwright.sync_api import expect
from running_wisp import until

ASKS = "This gateway needs an API key"
# As on a busy machine: Preact's timers of 35 and 100 ms run effects after a render.
LATE_EFFECTS = """() => {
    const later = window.setTimeout.bind(window);
    window.requestAnimationFrame = call => later(call, 3000);
    window.setTimeout = (call, ms, ...rest) => later(call, [35, 100].includes(ms) ? 3000 : ms, ...rest);
}"""
CONTINUE = """() => new Promise(done => {
    const watch = new MutationObserver(() => {
        if (!document.querySelector("main.view-chat")) return;
        watch.disconnect();
        done();
    });
    watch.observe(document.body, { childList: true, subtree: true });
    document.querySelector(".key-prompt button[type=submit]").click();
})"""


@pytest.fixture
def locked(open_page, guarded):
    watched = open_page("#/chat", url=guarded.url)
    watched.expected = ["401 (Unauthorized)"]
    expect(watched.page.get_by_role("heading", name=ASKS)).to_be_visible()
    return watched


def enter(page, key):
    page.get_by_role("textbox", name="API key").fill(key)
    page.get_by_role("button", name="Continue").click()


def models(page):
    return page.get_by_role("combobox", name="Model", exact=True).locator("option[value='smollm2']")


def test_a_gateway_with_keys_asks_for_one_and_answers_with_it(locked, wisp, script):
    wisp.wake("scripted")
    expect(models(locked.page)).to_have_count(0)
    enter(locked.page, KEY)
    expect(models(locked.page)).to_have_count(1)
    chat = Chat(locked.page, "scripted")
    script.answer("with a key", "You may.")
    expect(chat.ask("with a key").get_by_text("You may.")).to_be_visible()


def test_a_wrong_key_is_refused_with_a_sentence(locked):
    enter(locked.page, "sk-wrong")
    expect(locked.page.get_by_role("alert")).to_contain_text("key")
    expect(models(locked.page)).to_have_count(0)
    enter(locked.page, KEY)
    expect(models(locked.page)).to_have_count(1)


def test_a_key_is_kept_for_the_tab_alone(locked, guarded):
    enter(locked.page, KEY)
    expect(models(locked.page)).to_have_count(1)
    locked.page.reload()
    expect(models(locked.page)).to_have_count(1)
    assert KEY not in locked.page.evaluate(
        "JSON.stringify({ ...localStorage }) + document.cookie + location.href"
    )
    other = locked.page.context.new_page()
    other.goto(f"{guarded.url}/#/chat")
    expect(other.get_by_role("heading", name=ASKS)).to_be_visible()


def test_a_key_can_be_forgotten(locked):
    enter(locked.page, KEY)
    expect(models(locked.page)).to_have_count(1)
    locked.page.get_by_role("button", name="API key").click()
    locked.page.get_by_role("button", name="Forget key").click()
    expect(locked.page.get_by_role("heading", name=ASKS)).to_be_visible()


def test_a_model_that_needs_a_key_asks_for_it_on_its_card_and_in_the_chat(mixed, open_page, scripts):
    scripts["second"].answer("with its key", "You may.")
    page = open_page("#/models", url=mixed.url).page
    card = page.get_by_role("article", name="second", exact=True)
    enter_key = card.get_by_role("button", name="Enter API key for second")
    expect(enter_key).to_be_visible()
    expect(
        card.get_by_text("Chat and other requests need its API key; stopping it here doesn’t.")
    ).to_be_visible()
    enter_key.click()
    dialog = page.get_by_role("dialog")
    enter(dialog, "sk-wrong")
    expect(dialog.get_by_role("alert")).to_have_text("This key doesn’t open second.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(card.get_by_role("link", name="Chat with second")).to_have_count(0)
    page.get_by_role("link", name="Chat", exact=True).click()
    model = page.get_by_role("combobox", name="Model", exact=True)
    model.select_option(label="second · needs an API key")
    enter(dialog, KEY)
    expect(dialog).to_have_count(0)
    expect(model).to_have_value("second")
    expect(Chat(page).ask("with its key").get_by_text("You may.")).to_be_visible()
    page.get_by_role("link", name="Models", exact=True).click()
    expect(card.get_by_role("link", name="Chat with second")).to_be_visible()


def test_a_message_that_a_revoked_key_refuses_leads_to_another_key(mixed, keys_of_mixed, open_page, scripts):
    scripts["second"].answer("once more", "Now you may.")
    watched = open_page("#/models", url=mixed.url)
    watched.expected = ["401 (Unauthorized)", "net::ERR_"]
    page = watched.page
    page.get_by_role("button", name="API key", exact=True).click()
    enter(page, KEY)
    page.get_by_role("article", name="second", exact=True).get_by_role("link", name="Chat").click()
    chat = Chat(page, "second")
    chat.ask("something")
    page.route("**/state/stream", lambda route: route.abort())  # a refused stream would lock the whole page
    keys_of_mixed.write_text(f"tester:{KEY}-renewed\n")
    answer = chat.send("once more")
    answer.get_by_role("button", name="Enter API key").click()
    enter(page, f"{KEY}-renewed")
    answer.get_by_role("button", name="Try again").click()
    expect(chat.answers.last.get_by_text("Now you may.")).to_be_visible()


def test_a_view_whose_module_comes_just_after_the_key_is_shown(browser, guarded):
    page = browser.new_context().new_page()
    held, streams = [], []
    page.route("**/page/chat/view.js", lambda route: held.append(route))
    page.route("**/state/stream", lambda route: streams.append(route))
    page.goto(f"{guarded.url}/#/chat", wait_until="commit")
    until(lambda: page.wait_for_timeout(50) or (held and streams), "both are asked for")
    page.unroute("**/state/stream")
    streams[0].continue_()
    expect(page.get_by_role("heading", name=ASKS)).to_be_visible()
    page.get_by_role("textbox", name="API key").fill(KEY)
    page.evaluate(LATE_EFFECTS)
    page.evaluate(CONTINUE)
    held[0].continue_()
    expect(page.get_by_role("combobox", name="Model", exact=True)).to_be_visible()
    page.context.close()
