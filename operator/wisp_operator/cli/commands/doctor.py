"""``wisp doctor``: what is installed, what is missing, the remedies; also for bug reports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import click

from wisp_operator.cli.checks import Check, run_all

MARKS = {"ok": ("✓", "green"), "note": ("·", None), "warn": ("!", "yellow"), "fail": ("✗", "red")}
EXAMPLES = """\b
Examples:
  wisp doctor
  wisp doctor --json > doctor.json      for a bug report; holds no secrets

Exit codes: 0 nothing is in the way, 1 something is.
"""


@click.command("doctor", epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def command(as_json: bool) -> None:
    """Check what is installed, and say what to do about what is not."""
    checks = run_all()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    else:
        show(checks)
    raise click.exceptions.Exit(1 if any(check.standing == "fail" for check in checks) else 0)


def show(checks: Sequence[Check]) -> None:
    """Print one line a check, its advice below it, and a sentence at the end."""
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark, colour = MARKS[check.standing]
        click.echo(f"{click.style(mark, fg=colour, bold=True)} {check.name:<{width}}  {check.found}")
        if check.advice:
            click.echo(f"  {'':<{width}}  → {click.style(check.advice, bold=True)}")
    failed = sum(check.standing == "fail" for check in checks)
    warned = sum(check.standing == "warn" for check in checks)
    click.echo()
    if failed:
        click.echo(f"{failed} in the way, {warned} to look at. Do what the arrows say, then ask again.")
    else:
        click.echo(
            f"Nothing is in the way{f', {warned} to look at' if warned else ''}. Next: wisp up model.yaml"
        )
