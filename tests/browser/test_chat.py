"""Chat with scripted models: answers, stop, regenerate, edit, compare, history."""

from __future__ import annotations

import pytest
from chat import Chat
from playwright.sync_api import expect
from running_wisp import until

FIND = """async word => {
    const { openArchive } = await import("/page/conversation/archive.js");
    return (await (await openArchive()).search(word)).size;
}"""


@pytest.fixture
def chat(open_page):
    return Chat(open_page("#/chat").page, "scripted")


def test_an_answer_is_shown_as_it_comes_with_its_figures(chat, script):
    rest, go_on = script.wait()
    script.answer(
        "a list", "Some **bold** text.\n\n", rest, "1. one\n2. two\n\n```python\nprint(1)\n```\n", cached=7
    )
    answer = chat.send("Write a list")
    expect(answer.get_by_text("Some bold text.")).to_be_visible()
    expect(answer.locator("strong")).to_have_text("bold")
    go_on()
    chat.ended(answer)
    expect(answer.get_by_role("listitem")).to_have_text(["one", "two"])
    expect(answer.locator("pre")).to_have_text("print(1)")
    expect(answer.get_by_text("7 cached")).to_be_visible()
    expect(answer.get_by_text("tokens/s")).to_be_visible()
    expect(answer.get_by_text("first token")).to_be_visible()


def test_stop_ends_the_answer_and_keeps_what_had_come(chat, script):
    never, _ = script.wait()
    script.answer("stop me", "The beginning. ", never, "The end.")
    answer = chat.send("stop me")
    expect(answer.get_by_text("The beginning.")).to_be_visible()
    chat.stop.click()
    chat.ended(answer)
    expect(answer.get_by_text("Stopped.")).to_be_visible()
    expect(answer.get_by_text("The end.")).to_have_count(0)


def test_escape_stops_too(chat, script):
    never, _ = script.wait()
    script.answer("escape", "The beginning. ", never)
    answer = chat.send("escape")
    expect(answer.get_by_text("The beginning.")).to_be_visible()
    chat.page.keyboard.press("Escape")
    expect(answer.get_by_text("Stopped.")).to_be_visible()


def test_regenerate_answers_anew_in_the_same_place(chat, script):
    script.answer("which", "The first.")
    answer = chat.ask("which?")
    script.answer("which", "The second.")
    answer.get_by_role("button", name="Regenerate").click()
    expect(chat.answers).to_have_count(1)
    expect(answer.get_by_text("The second.")).to_be_visible()
    expect(answer.get_by_text("The first.")).to_have_count(0)


def test_an_edited_message_is_sent_in_place_of_the_old_one(chat, script):
    script.answer("old words", "On the old.")
    script.answer("new words", "On the new.")
    chat.ask("old words")
    chat.ask("something behind it")
    chat.questions.first.get_by_role("button", name="Edit").click()
    chat.page.get_by_role("textbox", name="Edit message").fill("new words")
    chat.page.get_by_role("textbox", name="Edit message").press("Enter")
    expect(chat.answers).to_have_count(1)
    expect(chat.answers.first.get_by_text("On the new.")).to_be_visible()
    expect(chat.questions.get_by_text("old words")).to_have_count(0)


def test_compare_asks_two_models_side_by_side(chat, scripts):
    for name in ("scripted", "second"):
        scripts[name].answer("compare", f"I am {name}.")
    chat.page.get_by_role("button", name="Compare").click()
    chat.choose("second", "Model 2")
    chat.send("compare yourselves")
    expect(chat.answers).to_have_count(2)
    left, right = chat.answers.first, chat.answers.last
    expect(left.get_by_text("I am scripted.")).to_be_visible()
    expect(right.get_by_text("I am second.")).to_be_visible()
    tops = chat.answers.evaluate_all("answers => answers.map(answer => answer.getBoundingClientRect().top)")
    assert tops[0] == tops[1], "they are side by side"


def test_an_answer_anew_in_one_column_leaves_the_running_one_of_the_other(chat, scripts):
    rest, go_on = scripts["second"].wait()
    scripts["scripted"].answer("both of you", "The first.")
    scripts["second"].answer("both of you", "Begun", rest, " and ended.")
    chat.page.get_by_role("button", name="Compare").click()
    chat.choose("second", "Model 2")
    chat.send("both of you")
    left, right = chat.answers.first, chat.answers.last
    expect(right.get_by_text("Begun")).to_be_visible()
    chat.ended(left)
    scripts["scripted"].answer("both of you", "The second.")
    left.get_by_role("button", name="Regenerate").click()
    expect(left.get_by_text("The second.")).to_be_visible()
    expect(chat.stop).to_be_visible()
    go_on()
    expect(right.get_by_text("Begun and ended.")).to_be_visible()


def test_thinking_is_folded_until_it_is_opened(chat, script):
    script.answer("ponder", "<think>A secret plan.</think>The result.")
    answer = chat.ask("ponder this")
    expect(answer.get_by_text("The result.")).to_be_visible()
    expect(answer.get_by_text("A secret plan.")).not_to_be_visible()
    answer.get_by_text("Thought").click()
    expect(answer.get_by_text("A secret plan.")).to_be_visible()


def test_a_tool_call_is_a_block_whose_result_goes_back(chat, script):
    script.answer("weather", '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>')
    chat.page.get_by_role("button", name="Parameters").click()
    tool = '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]'
    chat.page.get_by_role("textbox", name="Tools").fill(tool)
    chat.page.get_by_role("button", name="Done").click()
    answer = chat.ask("weather in Oslo?")
    call = answer.get_by_role("region", name="Call of weather")
    expect(call.locator("pre")).to_contain_text('"city": "Oslo"')
    script.answer("weather", "It rains.")
    call.get_by_role("textbox", name="Result of weather").fill("rain")
    answer.get_by_role("button", name="Send results").click()
    expect(chat.answers.last.get_by_text("It rains.")).to_be_visible()


def test_conversations_stay_in_the_browser_and_can_be_found_again(chat, script):
    script.answer("zebra", "About zebras.")
    chat.ask("a zebra")
    until(lambda: chat.page.evaluate(FIND, "zebras"), "the browser keeps the answer")
    chat.page.get_by_role("button", name="New conversation").click()
    expect(chat.questions).to_have_count(0)
    chat.page.reload()
    chat.page.get_by_role("searchbox", name="Search conversations").fill("zebras")
    chat.page.get_by_role("button", name="a zebra", exact=True).click()
    expect(chat.answers.get_by_text("About zebras.")).to_be_visible()


def test_parameters_and_the_system_prompt_reach_the_model(chat, script):
    script.answer("count", "one two three four five six seven eight")
    chat.set(Max_tokens="2")
    answer = chat.ask("count please")
    expect(answer.get_by_text("Max tokens")).to_be_visible()
    expect(answer.get_by_text("2 tokens")).to_be_visible()
