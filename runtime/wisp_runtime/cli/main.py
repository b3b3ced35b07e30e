"""``wisp-runtime``: commands of a runtime pod.

Commands are imported when they are called, so that ``--help`` prints before NumPy or Starlette load.
"""

from __future__ import annotations

import importlib

import click

from wisp_plan.distribution import version
from wisp_runtime.setting_parsers import nearest

# Name → (module, summary). A command module offers ``command``, a click command.
COMMANDS = {
    "serve": ("wisp_runtime.cli.serve", "Serve a model behind the OpenAI API."),
    "pull": ("wisp_runtime.cli.pull", "Fetch a model into the cache."),
    "convert": ("wisp_runtime.cli.convert", "Convert a GGUF file to safetensors."),
    "quantize": ("wisp_runtime.cli.quantize", "Quantize a checkpoint to 8 or 4 bits."),
    "kernels": ("wisp_runtime.cli.kernels", "Compile the GPU kernels, and list them."),
    "bench": ("wisp_runtime.cli.bench", "Measure speed, memory, start-up, perplexity."),
    "profile": ("wisp_runtime.cli.profile", "Break down a step's time by kernel."),
    "example": ("wisp_runtime.cli.example", "Make a small example model and print its folder."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module only to run it or to show its own help."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Return the names in the order of typical use."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Import a command; an unknown name ends with the nearest known one."""
        if cmd_name not in COMMANDS:
            known = ", ".join(COMMANDS)
            ctx.fail(f"no command {cmd_name!r}{nearest(cmd_name, list(COMMANDS))}; there are {known}.")
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list from the summaries above, importing nothing."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _print_version(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given:
        click.echo(f"wisp-runtime {version()}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version.",
)
def main() -> None:
    """The runtime of a Wisp pod: HTTP in, tokens out."""
