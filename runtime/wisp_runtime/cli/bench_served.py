"""``wisp-runtime bench startup`` and ``serving``: benchmarks of a server in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from wisp_runtime.cli.bench_options import SETTINGS, Numbers, engine_options, report

if TYPE_CHECKING:
    from wisp_runtime.bench.record import Row


def server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the server."""
    options = (
        click.option(
            "--checkpoint",
            type=click.Path(file_okay=False, path_type=Path),
            help="Write a shape's checkpoint there and keep it, or use it if it is there (default: a "
            "temporary folder).",
        ),
        click.option(
            "--flag",
            "flags",
            multiple=True,
            metavar="FLAG",
            help="Another flag of serve, e.g. --flag=--max-context=8192; may be given again.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.command(context_settings=SETTINGS)
@engine_options
@server_options
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Measured starts, after one of warm-up.",
)
def startup(**options: Any) -> None:
    """Time a server's start, up to its first streamed token.

    From the process's start. For a named shape a checkpoint of its real size is written first, with a
    tokenizer of its vocabulary; the files are then in the page cache.
    """

    def rows() -> Iterator[Row]:
        from wisp_runtime.bench.serving.start import start_rows

        server = {"device": options["device"], "repeats": options["repeats"], "flags": _serve_flags(options)}
        with _folder(options) as folder:
            yield from start_rows(folder, Path(options["shape"]).name, **server)

    report("startup", options, rows)


@click.command(context_settings=SETTINGS)
@engine_options
@server_options
@click.option("--clients", type=Numbers(), default="1,8,32", show_default=True, help="Concurrent streams.")
@click.option("--prompt", type=click.IntRange(1), default=512, show_default=True, help="Tokens of a prompt.")
@click.option(
    "--tokens", type=click.IntRange(2), default=256, show_default=True, help="Tokens of a response."
)
@click.option(
    "--url",
    metavar="HOST:PORT/MODEL",
    help="A running server (a gateway, say) instead of one that is started; the shape names it.",
)
def serving(**options: Any) -> None:
    """Stream over HTTP to concurrent clients.

    Their number is --clients. Reported are the gap between two tokens of a stream while all run, the time to
    the first token when all arrive at once, and tokens a second, in total and of each stream.
    """

    def rows() -> Iterator[Row]:
        from wisp_runtime.bench.serving.serving import rows_of_url, serving_rows

        load = {"clients": options["clients"], "prompt": options["prompt"], "tokens": options["tokens"]}
        if options["url"] is not None:
            yield from rows_of_url(options["url"], options["shape"], device=options["device"], **load)
            return
        with _folder(options) as folder:
            server = {"device": options["device"], "flags": _serve_flags(options)}
            yield from serving_rows(folder, Path(options["shape"]).name, **server, **load)

    report("serving", options, rows)


@contextmanager
def _folder(options: dict[str, Any]) -> Iterator[Path]:
    """Yield the folder of the model: the named one, or a checkpoint of the shape, written if missing."""
    from wisp_plan.presets import SHAPES

    if options["shape"] not in SHAPES:
        yield Path(options["shape"])
        return
    if (folder := options["checkpoint"]) is not None:
        _write(options, folder)
        yield folder
        return
    with TemporaryDirectory(prefix="wisp-bench-") as scratch:
        _write(options, Path(scratch) / options["shape"])
        yield Path(scratch) / options["shape"]


def _write(options: dict[str, Any], folder: Path) -> None:
    from wisp_runtime.bench.checkpoint import is_written, write_checkpoint
    from wisp_runtime.cli.progress import progress

    if not is_written(options["shape"], folder):
        with progress(f"writing {options['shape']}") as on_progress:
            write_checkpoint(options["shape"], folder, on_progress, options["seed"])


def _serve_flags(options: dict[str, Any]) -> list[str]:
    flags = ["--block-tokens", str(options["block_tokens"])]
    for name in ("max_step_tokens", "threads"):
        if options[name] is not None:
            flags += [f"--{name.replace('_', '-')}", str(options[name])]
    return [*flags, *options["flags"]]
