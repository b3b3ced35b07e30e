"""``wisp-runtime bench perplexity DIR… --text FILE``: quality of checkpoints, quantized or not."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from wisp_plan.kv_formats.layers import SERVED_KV_FORMATS
from wisp_runtime.cli.bench_options import SETTINGS, reported_failures
from wisp_runtime.cli.progress import counted


@click.command("perplexity", context_settings=SETTINGS)
@click.argument("folders", metavar="DIR…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--text",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Text to predict, UTF-8.",
)
@click.option("--window", type=click.IntRange(2), default=512, show_default=True, help="Tokens of a window.")
@click.option(
    "--kv-cache-dtype",
    "kv",
    type=click.Choice(SERVED_KV_FORMATS["cpu"]),
    default="bf16",
    show_default=True,
    help="Format of keys and values; bf16 is float32 on the CPU.",
)
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: one a CPU).")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a model.")
def command(folders: tuple[Path, ...], text: Path, as_json: bool, **options: Any) -> None:
    """Measure perplexity on a text, on the CPU.

    Weights are dequantized and computed in float32, so that models differ by their weights alone. The text is
    split into windows; every token of a window but the first is predicted from those before it.
    """
    with reported_failures():
        from wisp_runtime.bench.perplexity import perplexity_of
        from wisp_runtime.models.text_tokens import read_text

        content = read_text(text)
        for folder in folders:
            began_s = time.monotonic()
            with counted(f"predicting with {folder.name}") as on_progress:
                measured = perplexity_of(folder, content, on_progress=on_progress, **options)
            took_s = time.monotonic() - began_s
            facts = {"folder": str(folder), "perplexity": round(measured.value, 4), "tokens": measured.tokens}
            if as_json:
                click.echo(json.dumps(facts | {"seconds": round(took_s, 2)}))
            else:
                click.echo(f"{folder}: {measured.value:.3f} over {measured.tokens} tokens, {took_s:.1f} s")
