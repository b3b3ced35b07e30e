"""The live table of ``wisp up``: every model, its state, and commands to type next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from wisp_operator.cli.display.rows import Row, detail
from wisp_operator.local.config import API_KEY

NO_KEYS: Mapping[str, Path] = MappingProxyType({})

MARKS = {
    "Asleep": ("○ asleep", "dim"),
    "Waking": ("◐ waking", "yellow"),
    "Ready": ("● ready", "green"),
    "Failed": ("✗ failed", "red"),
    "Suspended": ("‖ suspended", "dim"),
}


def render(
    rows: Sequence[Row],
    url: str,
    idle_after_s: Mapping[str, float],
    events: Sequence[str],
    *,
    key_files: Mapping[str, Path] = NO_KEYS,
    notice: str = "",
) -> RenderableType:
    """Render everything that ``wisp up`` shows.

    Args:
        rows: rows of the gateway's ``/state``.
        url: base URL of the gateway.
        idle_after_s: idle seconds after which a model goes to zero, by model; absent if it never does.
        events: last log lines.
        key_files: file of the keys that callers need, by model; absent if it is open.
        notice: text in the place of the commands to type next.
    """
    head = Text.assemble(("wisp ", "bold"), (f"{url}/v1", "cyan"), ("   Ctrl-C stops", "dim"))
    parts: list[RenderableType] = [Text(), head, Text(), _table(rows, idle_after_s), *_failures(rows), Text()]
    parts.append(Text(notice, "yellow") if notice else _next_steps(rows, url, key_files))
    if events:
        parts += [Text(), *(Text(event, "dim") for event in events)]
    return Padding(Group(*parts), (0, 1))


def _table(rows: Sequence[Row], idle_after_s: Mapping[str, float]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("MODEL", no_wrap=True)
    table.add_column("STATE", no_wrap=True)
    table.add_column("WAITING", justify="right")
    table.add_column("RUNNING", justify="right")
    table.add_column("TOK/S", justify="right", min_width=6)
    table.add_column("", ratio=1, min_width=34)
    in_many = len({row.namespace for row in rows}) > 1
    for row in rows:
        mark, style = MARKS.get(row.state, (row.state, ""))
        table.add_row(
            row.key if in_many else row.name,
            Text(mark, style),
            _count(row.waiting, "yellow"),
            _count(row.running, "green"),
            Text(f"{row.tokens_per_second:.1f}") if row.tokens_per_second else Text("-", "dim"),
            Text(row.reason, "red")
            if row.state == "Failed"
            else Text(detail(row, idle_after_s.get(row.key))),
        )
    return table


def _failures(rows: Sequence[Row]) -> list[RenderableType]:
    """Messages of failed models, complete and over the full width: their end is the remedy."""
    failed = [row for row in rows if row.state == "Failed" and row.message]
    return [Text(), *(Text(f"✗ {row.name}: {row.message}", "red") for row in failed)] if failed else []


def _count(number: int, style: str) -> Text:
    return Text(str(number), style) if number else Text("-", "dim")


def _next_steps(rows: Sequence[Row], url: str, key_files: Mapping[str, Path]) -> RenderableType:
    """One line for people, one for programs, both with a model that can answer; and the page."""
    usable = next((row for row in rows if row.state in ("Ready", "Waking", "Asleep")), None)
    if usable is None:
        return Text()
    key_file = key_files.get(usable.key)
    lines = [
        ("talk", _chat_command(usable, url)),
        ("open", f"{url} in a browser"),
        ("call", curl_command(usable, url, needs_key=key_file is not None)),
    ]
    if key_file is not None:
        lines.insert(0, ("key", f"export {API_KEY}=…    with a key of {key_file}"))
    return Group(*(Text.assemble((f"{word:<6}", "dim"), line) for word, line in lines))


def curl_command(row: Row, url: str, *, needs_key: bool = False) -> str:
    """A command to paste, whatever the terminal adds to its lines: they end within the JSON only."""
    body = f'{{"model":"{row.served_name}","messages":[{{"role":"user","content":"Hi"}}]}}'
    headers = "-H 'Content-Type: application/json'" + (f' -H "x-api-key: ${API_KEY}"' if needs_key else "")
    return f"curl {url}/v1/chat/completions -d '\n      {body}\n      ' {headers}"


def _chat_command(row: Row, url: str) -> str:
    command = f"wisp chat {row.served_name}"
    return command if url == "http://127.0.0.1:8080" else f"{command} --url {url}"
