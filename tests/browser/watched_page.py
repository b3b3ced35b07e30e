"""A page of the browser that notes what must not happen: errors, CSP violations, requests elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.sync_api import CDPSession, ConsoleMessage, Page, Request, Response, expect

FIRST_VIEW_PAUSE_MS = (
    1_500  # what waits for an element runs in the page, a quarter of its time to the first view
)
INIT = """
globalThis.cspViolations = [];
document.addEventListener("securitypolicyviolation",
    event => cspViolations.push(`${event.violatedDirective}: ${event.blockedURI || event.sample}`));
const cards = new MutationObserver(() => {
    if (!document.querySelector("main article")) return;
    cards.disconnect();
    performance.mark("cards");
});
cards.observe(document, { childList: true, subtree: true });
"""


@dataclass
class Problems:
    """What a page did that it must not.

    Attributes:
        console: errors and warnings in the console.
        exceptions: uncaught exceptions.
        elsewhere: requests to other hosts.
        dialogs: messages of dialogs.
        csp: violations of the Content-Security-Policy.
    """

    console: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    dialogs: list[str] = field(default_factory=list)
    csp: list[str] = field(default_factory=list)


class WatchedPage:
    """A page, and what is known of it.

    Args:
        page: page of a fresh context, not loaded yet.
        url: address of the gateway.

    Attributes:
        expected: texts of console errors that a test provokes, such as a 401 or a lost connection.
        received_bytes: bytes that came over the network, headers included.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.problems = Problems()
        self.expected: Collection[str] = ()
        self.received_bytes = 0
        page.add_init_script(INIT)
        page.on("console", self._note_console)
        page.on("pageerror", lambda error: self.problems.exceptions.append(str(error)))
        page.on("request", self._note_request)
        page.on("dialog", self._note_dialog)
        self.devtools: CDPSession = page.context.new_cdp_session(page)
        self.devtools.send("Network.enable")
        self.devtools.send("Performance.enable")
        self.devtools.on("Network.loadingFinished", self._note_bytes)

    def goto(self, fragment: str = "") -> Response | None:
        """Open the gateway's page, at ``#/chat`` for instance."""
        return self.page.goto(f"{self.url}/{fragment}", wait_until="load")

    def check(self) -> None:
        """Fail if anything happened that must not."""
        if not self.page.is_closed():
            self.problems.csp += self.page.evaluate("globalThis.cspViolations ?? []")
        assert self.problems == Problems(), f"{self.url}: {self.problems}"

    def metric(self, name: str) -> float:
        """Return a metric of ``Performance.getMetrics``, such as ``ProcessTime``: CPU seconds."""
        metrics = self.devtools.send("Performance.getMetrics")["metrics"]
        return next(float(metric["value"]) for metric in metrics if metric["name"] == name)

    def first_view_ms(self) -> float:
        """Return the milliseconds from the navigation to the first model's card."""
        self.page.wait_for_timeout(FIRST_VIEW_PAUSE_MS)
        expect(self.page.get_by_role("article").first).to_be_visible()
        return float(self.page.evaluate("performance.getEntriesByName('cards')[0].startTime"))

    def idle_share(self, seconds: float) -> float:
        """Return the share of a core that the page's process uses while nobody touches it."""
        self.page.wait_for_timeout(2000)
        before = self.metric("ProcessTime"), self.metric("Timestamp")
        self.page.wait_for_timeout(1000 * seconds)
        return (self.metric("ProcessTime") - before[0]) / (self.metric("Timestamp") - before[1])

    def _note_console(self, message: ConsoleMessage) -> None:
        text = f"{message.type}: {message.text} ({message.location.get('url', '')})"
        if message.type in ("error", "warning") and not any(part in text for part in self.expected):
            self.problems.console.append(text)

    def _note_request(self, request: Request) -> None:
        scheme, host = urlsplit(request.url)[:2]
        if scheme not in ("data", "blob") and host != urlsplit(self.url).netloc:
            self.problems.elsewhere.append(request.url)

    def _note_dialog(self, dialog) -> None:
        self.problems.dialogs.append(dialog.message)
        dialog.dismiss()

    def _note_bytes(self, event: dict[str, float]) -> None:
        self.received_bytes += int(event["encodedDataLength"])
