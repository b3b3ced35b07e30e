"""Replies that try to act: they are shown, and nothing else happens."""

from __future__ import annotations

import pytest
from chat import Chat
from playwright.sync_api import expect

MARKDOWN_BYTES = 50_000
PARAGRAPH = """## Section {n}

Some **bold** and *slanted* words, `code` and a [link](https://example.com/{n}).

| a | b |
|---|---|
| {n} | <b>cell</b> |

```js
document.title = "taken {n}";
```

- one
  - two
    1. three

> quoted <img src=x onerror="document.title='taken'">

"""


HARM = (
    "script, style, iframe, object, embed, form[action], base, meta, img, input, [onerror], [onload], [style]"
)
REPLIES = [
    "<script>document.title = 'taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "<svg onload=\"document.title='taken'\"><script>document.title='taken'</script></svg>",
    "[click](javascript:document.title='taken')",
    "<a href=\"javascript:document.title='taken'\">click</a>",
    "![x](https://elsewhere.example/pixel.png)",  # an image would report that the reply was read
    "<iframe srcdoc=\"<script>parent.document.title='taken'</script>\"></iframe>",
    "<style>body { display: none }</style>Still here?",
    "<form action='https://elsewhere.example'><button>Send</button></form>",
    "<base href='https://elsewhere.example/'><meta http-equiv=refresh content='0; url=https://elsewhere.example'>",
    "<object data='data:text/html,<script>1</script>'></object><embed src=x>",
    "<div style='position:fixed;inset:0;background:red'>cover</div>",
    "<math><mi//xlink:href='data:x,<script>document.title=1</script>'>",
    "```html\n</code></pre><script>document.title='taken'</script>\n```",
    "<details open ontoggle=\"document.title='taken'\">x</details>",
    "<input autofocus onfocus=\"document.title='taken'\">",
    "<noscript><p title=\"</noscript><img src=x onerror=document.title='taken'>\">",
    "\u202e\u0000\ufeff<\u200bscript>alert(1)</script>",
]


@pytest.fixture
def chat(open_page):
    return Chat(open_page("#/chat").page, "scripted")


def test_a_reply_of_html_or_script_does_nothing_but_show(chat, script):
    for number, reply in enumerate(REPLIES):
        script.answer(f"number {number}.", reply, "\n\nThe end.")
        answer = chat.ask(f"number {number}.")
        expect(answer.get_by_text("The end.")).to_be_visible()
        assert answer.locator(".chat-answer-text").locator(HARM).count() == 0, reply
        links = answer.get_by_role("link").evaluate_all("links => links.map(link => link.href)")
        assert not [link for link in links if not link.startswith(("https://", "http://", "mailto:"))], reply
        for place in answer.get_by_text("click").all():
            place.click()
        assert chat.page.title() == "Chat · Wisp", reply
        assert answer.locator(".md").inner_text().strip() != "The end.", f"not shown: {reply}"


def test_50_kb_of_markdown_are_shown(chat, script):
    sections = MARKDOWN_BYTES // len(PARAGRAPH.format(n=0)) + 1
    text = "".join(PARAGRAPH.format(n=n) for n in range(sections))
    assert len(text.encode()) >= MARKDOWN_BYTES
    script.answer("long", text)
    answer = chat.ask("a long one")
    expect(answer.get_by_role("heading")).to_have_count(sections)
    expect(answer.locator("pre")).to_have_count(sections)
    expect(answer.get_by_role("table")).to_have_count(sections)
    expect(answer.get_by_text("Section 0", exact=True)).to_have_count(1)
    assert chat.page.title() == "Chat · Wisp"
    assert answer.locator("img").count() == 0
