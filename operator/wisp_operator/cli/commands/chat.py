"""``wisp chat MODEL``: a conversation in the terminal, through the gateway; plain text when piped."""

from __future__ import annotations

import difflib
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from wisp_operator.cli.display.rows import Row, read, waking
from wisp_operator.cli.display.wrap import Wrapper
from wisp_operator.cli.errors import wrapped
from wisp_operator.cli.gateway_client import DEFAULT_URL, GatewayClient, RequestRefused, TextDelta
from wisp_operator.errors import WispError

POLL_S = 0.25
MAX_TOKENS = 1024
WAKING = "waking"
TOO_LONG = "context_length_exceeded"
CLEAR_LINE = "\r\x1b[2K"
EXAMPLES = """\b
Examples:
  wisp chat                                 with the only model that is served
  wisp chat smollm2 --system "Answer in one sentence."
  wisp chat smollm2 --once "Why is the sky blue?"
  echo "Summarise: ..." | wisp chat smollm2
"""

Message = dict[str, str]


@click.command("chat", epilog=EXAMPLES)
@click.argument("model", required=False)
@click.option("--url", default=DEFAULT_URL, show_default=True, envvar="WISP_URL", help="Of the gateway.")
@click.option("--system", help="System prompt.")
@click.option(
    "--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True, help="0: no chance."
)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=MAX_TOKENS, show_default=True, help="Longest answer."
)
@click.option("--once", metavar="TEXT", help="Ask this, print the answer, leave.")
def command(model: str | None, url: str, system: str | None, once: str | None, **sampling: Any) -> None:
    """Talk to MODEL, or to the only one that is served. Ctrl-C stops an answer, Ctrl-D leaves.

    The first message wakes a model at zero; meanwhile its progress is shown. What is piped in is one message.
    WISP_API_KEY in the environment is sent to a gateway that wants a key.
    """
    gateway = GatewayClient(url)
    chat = Chat(gateway, model or _only_model(gateway), system, sampling)
    if once is not None:
        note(chat.send(once))
    elif not sys.stdin.isatty():
        text = sys.stdin.read().strip()
        if not text:
            raise click.UsageError("nothing was piped in; write: echo hello | wisp chat MODEL")
        note(chat.send(text))
    else:
        converse(chat)


def _only_model(gateway: GatewayClient) -> str:
    """Return the name of the gateway's model.

    Raises:
        UsageError: it serves none, or several.
    """
    names = [row.served_name for row in read(gateway.state())]
    if len(names) == 1:
        return names[0]
    served = f"name one of {', '.join(names)}" if names else "the gateway serves none"
    raise click.UsageError(f"Missing argument 'MODEL': {served}.")


def note(remark: str) -> None:
    """Print a remark on an answer's end to stderr, if there is one."""
    if remark:
        click.secho(wrapped(remark), dim=True, err=True)


class Chat:
    """A conversation: all messages so far, sent with each request."""

    def __init__(
        self,
        gateway: GatewayClient,
        model: str,
        system: str | None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self._gateway, self._model = gateway, model
        self._sampling = {key: value for key, value in (sampling or {}).items() if value is not None}
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def send(self, text: str, on_delta: Callable[[], object] = lambda: None) -> str:
        """Send ``text`` and print the answer as it comes; a failed exchange is not kept.

        Args:
            on_delta: callback as each delta arrives, before it is printed.

        Returns:
            Reason why the answer is incomplete, in words; empty if it is complete.

        Raises:
            WispError: the model refused, or nothing answers.
        """
        asked: Message = {"role": "user", "content": text}
        texts: list[str] = []
        remark = ""
        write = Wrapper(shutil.get_terminal_size().columns).feed if sys.stdout.isatty() else str
        with ProgressLine(self._gateway, self._model) as waiting:
            try:
                for delta in self._answer([*self._messages, asked]):
                    on_delta()
                    waiting.end()
                    texts.append(delta.text)
                    click.echo(write(delta.text), nl=False)
                    sys.stdout.flush()
                    remark = self._truncation_note() if delta.is_truncated else ""
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                waiting.end()
                remark = "" if texts else waiting.stopped()
                click.echo(" …" if texts else "", nl=False)
            finally:
                waiting.end()
                if texts:
                    click.echo()
        self._messages += [asked, {"role": "assistant", "content": "".join(texts)}]
        return remark

    def _answer(self, messages: Sequence[Message]) -> Iterator[TextDelta]:
        """Request an answer; without ``max_tokens`` where the context leaves fewer tokens than that."""
        try:
            yield from self._gateway.stream(self._model, messages, self._sampling)
        except RequestRefused as error:
            if error.code == "model_not_found":
                raise RequestRefused(self._unknown_model(error), error.code) from error
            if error.code != TOO_LONG or "max_tokens" not in self._sampling:
                raise
            unbounded = {key: value for key, value in self._sampling.items() if key != "max_tokens"}
            yield from self._gateway.stream(self._model, messages, unbounded)

    def _unknown_model(self, refusal: RequestRefused) -> str:
        try:
            return unknown_model_message(self._model, read(self._gateway.state()))
        except WispError:  # a gateway may show its state to fewer people than its models
            return str(refusal)

    def _truncation_note(self) -> str:
        most = self._sampling.get("max_tokens")
        return f"(stopped at {most} tokens; --max-tokens raises it)" if most else ""


def unknown_model_message(model: str, rows: Sequence[Row]) -> str:
    """Message for a model that the gateway does not serve."""
    names = sorted({row.served_name for row in rows})
    near = difflib.get_close_matches(model, names, 1, 0.5)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"no model {model!r} here{hint} wisp get lists those that are served."


def converse(chat: Chat) -> None:
    """Ask for messages until Ctrl-D."""
    with suppress(ImportError):
        import readline  # noqa: F401  (gives input() editing and history)
    click.secho("Ctrl-C stops an answer, Ctrl-D leaves.", dim=True, err=True)
    while True:
        try:
            text = input("\n> ").strip()
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.secho("\nCtrl-D leaves.", dim=True, err=True)
            continue
        if not text:
            continue
        try:
            note(chat.send(text))
        except WispError as error:
            click.secho(wrapped(str(error)), fg="red", err=True)


class ProgressLine:
    """Progress of a waking model on the terminal, until the first delta of the answer."""

    def __init__(self, gateway: GatewayClient, model: str) -> None:
        self._gateway, self._model = gateway, model
        self._over = threading.Event()
        self._is_shown = False
        self._is_waking = False
        self._thread = threading.Thread(target=self._show, daemon=True) if sys.stderr.isatty() else None

    def __enter__(self) -> ProgressLine:
        """Begin polling."""
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop polling."""
        self.end()

    def end(self) -> None:
        """Clear the line; repeated calls do nothing."""
        if self._over.is_set():
            return
        self._over.set()
        if self._thread:
            self._thread.join()
        if self._is_shown:
            click.echo(CLEAR_LINE, nl=False, err=True)

    def stopped(self) -> str:
        """Remark for a user who interrupted the wait."""
        if not self._is_waking:
            return "(stopped)"
        return f"(stopped; {self._model} goes on waking, so the next message finds it further)"

    def _show(self) -> None:
        while not self._over.wait(POLL_S):
            with suppress(WispError):
                rows = read(self._gateway.state())
                line = progress_line(rows, self._model)
                self._is_waking = line.startswith(WAKING)
                if line and not self._over.is_set():
                    self._is_shown = True
                    click.echo(f"{CLEAR_LINE}{click.style(line, dim=True)}", nl=False, err=True)


def progress_line(rows: list[Row], model: str) -> str:
    """Line to show before the answer begins; empty if the model is unknown."""
    row = next((row for row in rows if model in (row.served_name, row.key, row.name)), None)
    if row is None:
        return ""
    if row.state in ("Waking", "Asleep"):
        return f"{WAKING} {row.name}: {waking(row)}"
    return f"queued, {row.waiting} waiting" if row.waiting else "the first token is being computed"
