"""``wisp get``: the models of a gateway, as ``kubectl get imodel`` shows those of a cluster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import click

from wisp_operator.cli.display.rows import Row, format_duration, read
from wisp_operator.cli.gateway_client import DEFAULT_URL, GatewayClient

WATCH_S = 1.0
EXAMPLES = """\b
Examples:
  wisp get
  wisp get -o wide
  wisp get --watch
  wisp get --json | jq '.models[].state'
"""


@click.command("get", epilog=EXAMPLES)
@click.option("--url", default=DEFAULT_URL, show_default=True, envvar="WISP_URL", help="Of the gateway.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json"]), default="table", show_default=True
)
@click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
@click.option("--watch", "-w", is_flag=True, help="Print again whenever something changed; Ctrl-C ends it.")
def command(url: str, output: str, as_json: bool, watch: bool) -> None:
    """List the models of a gateway and their state."""
    gateway = GatewayClient(url)
    shown = ""
    while True:
        text = _text(gateway, "json" if as_json else output)
        if text != shown:
            click.echo(text)
            sys.stdout.flush()
        if not watch:
            return
        shown = text
        time.sleep(WATCH_S)


def _text(gateway: GatewayClient, output: str) -> str:
    state = gateway.state()
    if output == "json":
        return json.dumps(state, indent=2)
    rows = read(state)
    if not rows:
        return "No models. Serve one with: wisp up model.yaml"
    return columns(rows, wide=output == "wide")


def columns(rows: Sequence[Row], *, wide: bool) -> str:
    """The rows as kubectl prints them: upper-case heads, columns three spaces apart."""
    heads = ["NAMESPACE", "NAME", "REPLICAS", "STATE", "REASON", "WAITING", "RUNNING"]
    heads += ["TOK/S", "COLD", "IDLE"]
    table = [
        heads + (["SERVED NAME", "URL", "MESSAGE"] if wide else []),
        *(_cells(row, wide) for row in rows),
    ]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    padded = (
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in table
    )
    return "\n".join(line.rstrip() for line in padded)


def _cells(row: Row, wide: bool) -> list[str]:
    cells = [
        row.namespace,
        row.name,
        f"{row.ready}/{row.pods}",
        row.state,
        row.reason,
        str(row.waiting),
        str(row.running),
        f"{row.tokens_per_second:.1f}" if row.tokens_per_second else "-",
        f"{row.cold_start_s:.1f}s" if row.cold_start_s is not None else "-",
        format_duration(row.idle_s).replace(" ", "") if row.idle_s is not None else "-",
    ]
    return cells + ([row.served_name, row.url, row.message or "-"] if wide else [])
