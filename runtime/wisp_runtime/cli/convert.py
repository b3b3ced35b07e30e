"""``wisp-runtime convert FILE.gguf DIR``: a GGUF file becomes a folder of safetensors and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import click

from wisp_plan.units import format_size
from wisp_runtime.cli.failures import exit_on_failure
from wisp_runtime.cli.progress import progress
from wisp_runtime.errors import ModelNotFound

EXAMPLES = """\b
Examples:
  wisp-runtime convert Qwen3-0.6B-Q8_0.gguf ./Qwen3-0.6B
  wisp-runtime convert model.gguf ./model --dtype f32 --json
"""


@click.command("convert", epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=click.Choice(["bf16", "f32"]),
    default="bf16",
    show_default=True,
    help="Dtype of the weights.",
)
@click.option("--force", is_flag=True, help="Replace DIR if it is there.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(file: Path, folder: Path, dtype: str, force: bool, as_json: bool) -> None:
    """Convert the GGUF model FILE into the folder DIR: safetensors, config.json, tokenizer.json."""
    from wisp_runtime.convert.gguf import convert

    with exit_on_failure():
        if not file.is_file():  # before the progress bar begins
            raise ModelNotFound(f"{file} is not a file. Name a .gguf file.")
        with progress(f"converting {file.name}") as on_progress:
            made = convert(
                file, folder, dtype="f32" if dtype == "f32" else "bf16", force=force, on_progress=on_progress
            )
    if as_json:
        facts = {"folder": str(made.folder), "tensors": made.tensors, "parameters": made.parameters}
        click.echo(json.dumps(facts | {"weightsBytes": made.weights_bytes, "dtype": dtype}))
    else:
        millions = made.parameters / 1e6
        size = format_size(made.weights_bytes)
        click.echo(
            f"{made.folder}: {made.tensors} tensors, {millions:.1f} million parameters, {size} as {dtype}"
        )
