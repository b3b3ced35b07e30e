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
from wisp_operator.cli.errors import folded
from wisp_operator.cli.gateway_client import DEFAULT_URL, Gateway, Piece, Refused
from wisp_operator.errors import WispError

LOOK_S = 0.25
MAX_TOKENS = 1024
WAKING = "waking"
TOO_LONG = "context_length_exceeded"
CLEAR_LINE = "\r\x1b[2K"
EXAMPLES = """\b
Examples:
  wisp chat smollm2
  wisp chat smollm2 --system "Answer in one sentence."
  wisp chat smollm2 --once "Why is the sky blue?"
  echo "Summarise: ..." | wisp chat smollm2
"""

Message = dict[str, str]


@click.command("chat", epilog=EXAMPLES)
@click.argument("model")
@click.option("--url", default=DEFAULT_URL, show_default=True, envvar="WISP_URL", help="Of the gateway.")
@click.option("--system", help="What the model is told before the conversation.")
@click.option(
    "--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True, help="0: no chance."
)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=MAX_TOKENS, show_default=True, help="Longest answer."
)
@click.option("--once", metavar="TEXT", help="Ask this, print the answer, leave.")
def command(model: str, url: str, system: str | None, once: str | None, **sampling: Any) -> None:
    """Talk to MODEL. Ctrl-C stops an answer, Ctrl-D leaves.

    The first message wakes a model at zero; meanwhile its progress is shown. What is piped in is one message.
    """
    chat = Chat(Gateway(url), model, system, sampling)
    if once is not None:
        note(chat.say(once))
    elif not sys.stdin.isatty():
        text = sys.stdin.read().strip()
        if not text:
            raise click.UsageError("nothing was piped in; write: echo hello | wisp chat MODEL")
        note(chat.say(text))
    else:
        converse(chat)


def note(remark: str) -> None:
    """Say on stderr how an answer ended, if that is worth a word."""
    if remark:
        click.secho(folded(remark), dim=True, err=True)


class Chat:
    """A conversation: everything said so far, sent whole with each message."""

    def __init__(
        self, gateway: Gateway, model: str, system: str | None, sampling: Mapping[str, Any] | None = None
    ) -> None:
        self._gateway, self._model = gateway, model
        self._sampling = {key: value for key, value in (sampling or {}).items() if value is not None}
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def say(self, text: str, on_piece: Callable[[], object] = lambda: None) -> str:
        """Send ``text`` and print the answer as it comes; one that failed is as if it was never said.

        Args:
            on_piece: called as each piece arrives, before it is printed.

        Returns:
            Why the answer is not whole, in words; empty if it is.

        Raises:
            WispError: the model refused, or nothing answers.
        """
        asked: Message = {"role": "user", "content": text}
        pieces: list[str] = []
        remark = ""
        write = Wrapper(shutil.get_terminal_size().columns).feed if sys.stdout.isatty() else str
        with Waiting(self._gateway, self._model) as waiting:
            try:
                for piece in self._answer([*self._messages, asked]):
                    on_piece()
                    waiting.end()
                    pieces.append(piece.text)
                    click.echo(write(piece.text), nl=False)
                    sys.stdout.flush()
                    remark = self._cut() if piece.is_cut else ""
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                waiting.end()
                remark = "" if pieces else waiting.stopped()
                click.echo(" …" if pieces else "", nl=False)
            finally:
                waiting.end()
                if pieces:
                    click.echo()
        self._messages += [asked, {"role": "assistant", "content": "".join(pieces)}]
        return remark

    def _answer(self, messages: Sequence[Message]) -> Iterator[Piece]:
        """Ask; where the context leaves less than ``max_tokens``, that is the bound."""
        try:
            yield from self._gateway.stream(self._model, messages, self._sampling)
        except Refused as error:
            if error.code == "model_not_found":
                raise Refused(not_known(self._model, read(self._gateway.state())), error.code) from error
            if error.code != TOO_LONG or "max_tokens" not in self._sampling:
                raise
            unbounded = {key: value for key, value in self._sampling.items() if key != "max_tokens"}
            yield from self._gateway.stream(self._model, messages, unbounded)

    def _cut(self) -> str:
        most = self._sampling.get("max_tokens")
        return f"(stopped at {most} tokens; --max-tokens raises it)" if most else ""


def not_known(model: str, rows: Sequence[Row]) -> str:
    """What to say of a model that the gateway does not serve."""
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
            note(chat.say(text))
        except WispError as error:
            click.secho(folded(str(error)), fg="red", err=True)


class Waiting:
    """Shows on a terminal how far a waking model is, until the first piece of the answer."""

    def __init__(self, gateway: Gateway, model: str) -> None:
        self._gateway, self._model = gateway, model
        self._over = threading.Event()
        self._has_drawn = False
        self._is_waking = False
        self._thread = threading.Thread(target=self._show, daemon=True) if sys.stderr.isatty() else None

    def __enter__(self) -> Waiting:
        """Begin to look."""
        if self._thread:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking."""
        self.end()

    def end(self) -> None:
        """Take the line away; once is enough."""
        if self._over.is_set():
            return
        self._over.set()
        if self._thread:
            self._thread.join()
        if self._has_drawn:
            click.echo(CLEAR_LINE, nl=False, err=True)

    def stopped(self) -> str:
        """What to say to one who waits no longer."""
        if not self._is_waking:
            return "(stopped)"
        return f"(stopped; {self._model} goes on waking, so the next message finds it further)"

    def _show(self) -> None:
        while not self._over.wait(LOOK_S):
            with suppress(WispError):
                rows = read(self._gateway.state())
                line = progress_line(rows, self._model)
                self._is_waking = line.startswith(WAKING)
                if line and not self._over.is_set():
                    self._has_drawn = True
                    click.echo(f"{CLEAR_LINE}{click.style(line, dim=True)}", nl=False, err=True)


def progress_line(rows: list[Row], model: str) -> str:
    """What to show while the answer has not begun; empty if the model is not known."""
    row = next((row for row in rows if model in (row.served_name, row.key, row.name)), None)
    if row is None:
        return ""
    if row.state in ("Waking", "Asleep"):
        return f"{WAKING} {row.name}: {waking(row)}"
    return f"waiting for a place, {row.waiting} in line" if row.waiting else "thinking"
