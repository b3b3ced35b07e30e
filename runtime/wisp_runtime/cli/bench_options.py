"""Shared by the benchmark commands: options, output of rows, records, failures."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from wisp_plan.presets import SHAPES
from wisp_plan.quantization.packed_format import PACKED_FORMATS
from wisp_runtime.cli.failures import exit_on_failure
from wisp_runtime.config import DecodePath, KVCacheDtype
from wisp_runtime.errors import ConfigError

if TYPE_CHECKING:
    from wisp_runtime.bench.record import Row

SETTINGS = {"help_option_names": ["-h", "--help"]}
SHAPE_HELP = f"A shape with random weights ({', '.join(SHAPES)}), or a model's folder."


class Numbers(click.ParamType[Any]):
    """Whole numbers above zero, separated by commas."""

    name = "N,N,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a value from the command line."""
        if not isinstance(value, str):
            return value
        try:
            numbers = tuple(int(part) for part in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or min(numbers) < 1:
            return self.fail(f"{value!r} is not a list of whole numbers such as 1,8,32.", param, ctx)
        return numbers


FORMATS = ("quantization", "head_quantization", "kv_cache_dtype", "kv_cache_bf16_layers")
"""Names of the settings of weights, keys and values in memory."""

_KV_OPTIONS = (
    click.option(
        "--kv-cache-dtype",
        type=click.Choice(get_args(KVCacheDtype)),
        default="auto",
        show_default=True,
        help="Format of keys and values, see serve.",
    ),
    click.option(
        "--kv-cache-bf16-layers", type=click.IntRange(0), default=0, show_default=True, help="See serve."
    ),
)


_WEIGHT_OPTIONS = (
    click.option(
        "--quantization",
        type=click.Choice(["auto", "bf16", *PACKED_FORMATS]),
        default="auto",
        show_default=True,
        help="Format of the weights, see serve; random weights may have any.",
    ),
    click.option(
        "--head-quantization",
        type=click.Choice(["bf16", "fp8"]),
        default="bf16",
        show_default=True,
        help="See serve.",
    ),
)


def _with_options(
    function: Callable[..., None], options: Sequence[Callable[..., Any]]
) -> Callable[..., None]:
    for option in reversed(options):
        function = option(function)
    return function


def format_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of :data:`FORMATS`."""
    return _with_options(function, (*_WEIGHT_OPTIONS, *_KV_OPTIONS))


def engine_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that every benchmark has."""
    options = (
        click.option(
            "--shape",
            required=True,
            metavar="NAME|DIR",
            help=SHAPE_HELP,
        ),
        click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True),
        click.option(
            "--max-step-tokens", type=click.IntRange(1), help="The prefill chunk (default: as serve)."
        ),
        click.option(
            "--block-tokens", type=click.IntRange(1), default=16, show_default=True, help="Tokens a KV block."
        ),
        click.option("--threads", type=click.IntRange(1), help="CPU threads (default: measured at start)."),
        click.option(
            "--decode-path",
            type=click.Choice(get_args(DecodePath)),
            default="auto",
            show_default=True,
            help="Decode path, see serve.",
        ),
        click.option("--deterministic", is_flag=True, help="See serve."),
        *_WEIGHT_OPTIONS,
        *_KV_OPTIONS,
        click.option("--seed", default=0, show_default=True, help="Seed of the random weights."),
        click.option(
            "--json",
            "json_path",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write the record there.",
        ),
        click.option("--name", help="Name of the record (default: the benchmark and the shape)."),
        click.option("--commit", help="Commit of the code, for the record (default: git's HEAD)."),
    )
    return _with_options(function, options)


@contextmanager
def reported_failures() -> Iterator[None]:
    """Report a failure inside in one line, and exit with its code; wrong settings are a wrong usage."""
    with exit_on_failure():
        try:
            yield
        except ConfigError as error:
            raise click.UsageError(error.message) from error


def report(benchmark: str, options: dict[str, Any], rows: Callable[[], Iterable[Row]]) -> None:
    """Measure, show each row as it comes, and write the record.

    The reason why rows are of the general path is shown once, on stderr.
    """
    with reported_failures():
        from wisp_runtime.bench.table import show_row

        measured, reasons = [], set()
        for row in rows():
            click.echo(show_row(row))
            if (why := row.more.get("why")) and why not in reasons:
                click.echo(f"general path: {why}", err=True)
                reasons.add(why)
            measured.append(row)
        name = options["name"] or f"{benchmark}-{Path(options['shape']).name}"
        keep_record(name, options, measured)


def keep_record(name: str, options: dict[str, Any], rows: Iterable[Row]) -> None:
    """Write rows as a record, if ``--json`` names a file."""
    from wisp_runtime.bench.record import make_record, write_record

    if options["json_path"] is not None:
        typed = ["wisp-runtime", *sys.argv[1:]]
        made = make_record(name, rows, device=options["device"], command=typed, commit=options["commit"])
        write_record(options["json_path"], made)
