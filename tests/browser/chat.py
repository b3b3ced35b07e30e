"""The chat view as its user sees it: what can be typed, clicked and read, by roles and labels."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, Page, expect


class Chat:
    """The open chat view of a page.

    Args:
        page: page at ``#/chat``.
        model: model to choose first; empty: the one that is chosen.
    """

    def __init__(self, page: Page, model: str = "") -> None:
        self.page = page
        self.message = page.get_by_role("textbox", name="Message")
        self.sending = page.get_by_role("button", name="Send", exact=True)
        self.stop = page.get_by_role("button", name="Stop", exact=True)
        self.questions = page.get_by_role("article", name="You")
        self.answers = page.get_by_role("article", name=re.compile("^Answer of "))
        if model:
            self.choose(model)

    def choose(self, model: str, label: str = "Model") -> None:
        choice = self.page.get_by_role("combobox", name=label, exact=True)
        expect(choice.locator(f"option[value='{model}']")).to_have_count(1)
        choice.select_option(model)

    def set(self, **parameters: str) -> None:
        """Fill in parameters by their labels, with ``_`` for a space."""
        self.page.get_by_role("button", name="Parameters").click()
        for label, value in parameters.items():
            self.page.get_by_role("spinbutton", name=label.replace("_", " "), exact=True).fill(value)
        self.page.get_by_role("button", name="Done").click()

    def send(self, text: str) -> Locator:
        """Send a message and return the answer, which may not have begun."""
        before = self.answers.count()
        self.message.fill(text)
        expect(self.sending).to_be_enabled()  # an answer can be read before its stream has ended
        self.message.press("Enter")
        expect(self.answers).not_to_have_count(before)
        return self.answers.last

    def ask(self, text: str) -> Locator:
        """Send a message and return its answer once it has ended."""
        answer = self.send(text)
        self.ended(answer)
        return answer

    def ended(self, answer: Locator) -> None:
        expect(answer.get_by_role("button", name=re.compile("Regenerate|Try again"))).to_be_visible()
