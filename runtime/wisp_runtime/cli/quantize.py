"""``wisp-runtime quantize SRC DST --to FORMAT``: a 16-bit checkpoint becomes a compressed-tensors one."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wisp_plan.errors import SizeInvalid
from wisp_plan.units import format_size, parse_size
from wisp_plan.weights.held import ROUNDED
from wisp_runtime.cli.failures import exit_on_failure
from wisp_runtime.cli.progress import counted_lines, progress
from wisp_runtime.errors import ConfigError

if TYPE_CHECKING:
    from wisp_runtime.quantize.quantizing import Quantized

EXAMPLES = """\b
Examples:
  wisp-runtime quantize ./Qwen3-8B ./Qwen3-8B-FP8 --to fp8
  wisp-runtime quantize ./Qwen3-8B ./Qwen3-8B-NVFP4 --to nvfp4 --shard-size 2GiB
  wisp-runtime quantize $(wisp-runtime pull hf://Qwen/Qwen3-0.6B) ./int4 --to int4 --json
"""


def _size(_context: click.Context, _option: click.Parameter, value: str) -> int:
    try:
        size = parse_size(value)
    except SizeInvalid as error:
        raise click.BadParameter(error.message) from error
    if size < 1 << 20:
        raise click.BadParameter(f"{value} is less than 1 MiB.")
    return size


@click.command("quantize", epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", type=click.Path(path_type=Path))
@click.option(
    "--to",
    type=click.Choice(ROUNDED),
    required=True,
    help="Format of the projections: a scale a row (fp8, int8), or a group of 128, 64 or 32 columns (int4), "
    "or of 16 (nvfp4).",
)
@click.option(
    "--method",
    type=click.Choice(("rtn", "awq")),
    help="Round to nearest, or activation-aware scales by a calibration run (default: awq of 4 bits).",
)
@click.option(
    "--calibration",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text of the calibration run, UTF-8 (default: the one that is shipped).",
)
@click.option(
    "--shard-size", default="4GiB", show_default=True, callback=_size, help="Size of a file, at most."
)
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: one a CPU).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(source: str, target: Path, as_json: bool, **options: Any) -> None:
    """Quantize the 16-bit checkpoint in the folder SRC into the new folder DST.

    The result is in compressed-tensors, which vLLM, SGLang and transformers read too. Embeddings, norms,
    biases and the head stay as they are. Needs no GPU. An interrupted run goes on where it stopped when the
    same command is given again.
    """
    from wisp_runtime.models.text_tokens import read_text
    from wisp_runtime.quantize.quantizing import Options, quantize

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began_s = time.monotonic()
    with exit_on_failure("complete files are kept, and the same command goes on after them"):
        text = read_text(options["calibration"]) if options["calibration"] else ""
        sizes = options["shard_size"], options["threads"]
        settings = Options(options["to"], options["method"], text, *sizes)
        folder = _folder(source)
        on_layer = counted_lines(f"calibrating {folder.name}, layers")
        with progress(f"quantizing {folder.name}", is_shown=False) as on_progress:
            made = quantize(folder, target, settings, on_progress, on_layer)
    _show(made, options["to"], time.monotonic() - began_s, as_json)


def _folder(source: str) -> Path:
    path = source.removeprefix("file://")
    if "://" in path:
        raise ConfigError(
            f"{source} is no folder. Fetch it first: wisp-runtime pull {source}; then quantize the folder "
            "that it prints."
        )
    return Path(path)


def _show(made: Quantized, to: str, seconds: float, as_json: bool) -> None:
    if as_json:
        facts = {
            "folder": str(made.folder),
            "format": to,
            "quantizedLayers": made.layers,
            "keptLayers": {kept.layer: kept.reason for kept in made.kept},
            "sourceBytes": made.source_bytes,
            "resultBytes": made.result_bytes,
            "files": made.files,
            "resumedFiles": made.resumed,
        }
        click.echo(json.dumps(facts | {"seconds": round(seconds, 3)}))
        return
    for reason, count in Counter(kept.reason for kept in made.kept).items():
        click.echo(f"{count} projections stay as they are: {reason}", err=True)
    sizes = f"{format_size(made.source_bytes)} became {format_size(made.result_bytes)}"
    click.echo(f"{made.folder}: {made.layers} projections in {to}, {sizes}, {seconds:.1f} s")
