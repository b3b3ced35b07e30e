"""The ``wisp`` command and its subcommands, each imported only when it is asked for.

Data goes to stdout, logs and progress to stderr. Exit codes: 0 done, 1 failed, 2 misuse.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import Any

import click

SUMMARIES = {
    "up": "Serve the models of a manifest on this machine.",
    "get": "List the models of a gateway and their state.",
    "chat": "Talk to a model in the terminal.",
    "fit": "Ask whether a model fits a GPU, without starting it.",
    "doctor": "Check what is installed, and say what to do about what is not.",
    "demo": "Serve a small example model, and ask it a question.",
}
EXAMPLES = """\b
Examples:
  wisp up model.yaml                    serve it at http://127.0.0.1:8080/v1
  wisp chat smollm2                     talk to it; the first word wakes it
  wisp fit model.yaml --gpu l4          would it fit that card?
  kubectl apply -f model.yaml           the same file on a cluster
"""


class LazyGroup(click.Group):
    """A group with its commands' names and summaries, which imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names, in the order of :data:`SUMMARIES`."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Import one command; an unknown name ends with the nearest known one."""
        if cmd_name not in SUMMARIES:
            near = difflib.get_close_matches(cmd_name, SUMMARIES, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            ctx.fail(f"no command {cmd_name!r}{hint}; there are {', '.join(SUMMARIES)}.")
        command: click.Command = importlib.import_module(f"wisp_operator.cli.commands.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error for the user becomes a sentence, not a traceback."""
        from wisp_operator.cli.errors import exit_code_of, message_of, wrapped

        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BaseException as error:
            code = exit_code_of(error)
            if code is None:
                raise
            click.echo(wrapped(f"wisp {ctx.invoked_subcommand or ''}: {message_of(error)}"), err=True)
            sys.exit(code)


def _version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from wisp_plan.distribution import version

        click.echo(f"wisp {version()}")
        ctx.exit()


SETTINGS = {"max_content_width": 110, "help_option_names": ["-h", "--help"]}


@click.command(cls=LazyGroup, epilog=EXAMPLES, context_settings=SETTINGS)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def main() -> None:
    """Serve open LLMs on your own GPUs: nothing runs while nobody asks."""
