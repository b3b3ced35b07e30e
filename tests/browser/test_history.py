"""A conversation of 1,000 messages: shown, scrolled, continued."""

from __future__ import annotations

from chat import Chat
from playwright.sync_api import expect

TURNS = 500
SAVE = """async turns => {
    const { openArchive } = await import("/page/conversation/archive.js");
    const { newConversation, newTurn } = await import("/page/conversation/conversation.js");
    const { newAnswer } = await import("/page/conversation/answer.js");
    const conversation = newConversation(["scripted"]);
    conversation.title = "A long one";
    for (let n = 0; n < turns; n++) {
        const content = `Answer ${n} with **bold**.\\n\\n~~~py\\nx = ${n}\\n~~~\\n\\n- one\\n- two`;
        const answer = { ...newAnswer("scripted"), state: "done", content, finish: "stop" };
        conversation.turns.push(newTurn(`Question ${n}`, [answer]));
    }
    await (await openArchive()).save(conversation);
}"""


def test_a_conversation_of_1000_messages_is_shown_scrolled_and_continued(open_page, script):
    script.answer("one more", "There you are.")
    page = open_page("#/chat").page
    Chat(page, "scripted")
    page.evaluate(SAVE, TURNS)
    page.reload()
    page.get_by_role("button", name="A long one", exact=True).click()
    chat = Chat(page)
    expect(chat.questions).to_have_count(TURNS)
    expect(page.get_by_text(f"Question {TURNS - 1}", exact=True)).to_be_in_viewport()
    page.get_by_role("region", name="Messages").evaluate("log => log.scrollTo(0, 0)")
    expect(page.get_by_text("Question 0", exact=True)).to_be_in_viewport()
    expect(chat.answers.first.locator("strong")).to_have_text("bold")
    answer = chat.ask("one more")
    expect(answer.get_by_text("There you are.")).to_be_in_viewport()
    expect(chat.answers).to_have_count(TURNS + 1)
