"""``wisp-runtime kernels``: compile the kernels (``build``), and list them by GPU (``list``)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from wisp_plan.distribution import install_command
from wisp_runtime.cli.failures import exit_on_failure
from wisp_runtime.config import KERNELS_VARIABLE, Quantization, kernels_dir
from wisp_runtime.errors import GpuUnavailable, ModelUnsupported

if TYPE_CHECKING:
    from wisp_runtime.ops.cuda.device.build import Job
    from wisp_runtime.ops.cuda.device.catalogue import Catalogue
    from wisp_runtime.ops.cuda.device.manifest import Model

_WITH_PERSISTENT = "hopper"  # the one hardware with templates
KV_FORMATS = ("bf16", "fp8")
"""Formats of keys and values that the persistent decode kernel reads."""

EXAMPLES = """\b
Examples:
  wisp-runtime kernels build                   for every GPU there is a folder for
  wisp-runtime kernels build --arch sm_90a     for H100 and H200 alone
  wisp-runtime kernels build --for ./my-model  and the persistent decode kernel of a model of your own
  wisp-runtime kernels list --device 0         the kernels of this machine's GPU
"""


@click.group("kernels", epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
def command() -> None:
    """Compile and list the GPU kernels."""


@command.command("build")
@click.option("--arch", "architectures", multiple=True, metavar="ARCH", help="Only for these, e.g. sm_90a.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Folder of the cubins (default: {KERNELS_VARIABLE}, or kernels in the cache).",
)
@click.option(
    "--for",
    "model",
    metavar="DIR",
    help="Also the persistent decode kernel of the model in this folder (its config.json is enough).",
)
@click.option(
    "--quantization",
    type=click.Choice(get_args(Quantization)),
    default="auto",
    show_default=True,
    help="Format in which that model's weights are held, as in serve.",
)
@click.option(
    "--kv-cache-dtype",
    type=click.Choice(KV_FORMATS),
    default="bf16",
    show_default=True,
    help="Format of that model's keys and values, as in serve.",
)
@click.option("--nvcc", type=click.Path(dir_okay=False, path_type=Path), help="The compiler.")
@click.option(
    "--jobs", type=click.IntRange(1), default=os.cpu_count(), show_default=True, help="Sources at once."
)
def build(
    architectures: tuple[str, ...],
    out: Path | None,
    model: str | None,
    quantization: str,
    kv_cache_dtype: str,
    nvcc: Path | None,
    jobs: int,
) -> None:
    """Compile the missing kernels, and print the folder.

    The persistent decode kernel is compiled for each model of a manifest under kernels/; --for adds one that
    has none (with all other missing kernels). A serving process compiles nothing.
    """
    from wisp_runtime.ops.cuda.device import build as builder
    from wisp_runtime.ops.cuda.device.catalogue import Catalogue

    folder = (out or kernels_dir()).expanduser()
    with exit_on_failure("what is compiled is kept"):
        catalogue = Catalogue()
        extra, held = (None, "bf16") if model is None else _step_of(Path(model), quantization)
        if kv_cache_dtype != "bf16":
            held = f"{held}/{kv_cache_dtype}"
        planned = builder.plan(catalogue, architectures, folder, extra, held)
        if model and extra:
            templates = [catalogue.templates(hardware, held, extra) for hardware in catalogue.hardware]
            own = {template.defines for made in templates for template in made}
            _report_decode_kernels(model, [job for job in planned if job.source.defines in own])
        missing = [job for job in planned if not job.cubin.is_file()]
        for job in (job for job in planned if job not in missing):
            click.echo(f"{job.arch} {job.source.name}: there", err=True)
        if missing:
            compiler = builder.find_nvcc(nvcc)
            for built in builder.build(missing, compiler, catalogue.root / "include", jobs):
                name = f"{built.job.arch} {built.job.source.name}"
                click.echo(f"{name}: {built.seconds:.1f} s", err=True)
                if built.remarks:
                    click.echo(built.remarks, err=True)
    click.echo(folder)


def _report_decode_kernels(folder: str, jobs: list[Job]) -> None:
    if not jobs:
        click.echo(f"{folder}: no persistent decode kernel for these GPUs; see docs/decode-step.md", err=True)
    for job in jobs:
        click.echo(f"{folder}: its persistent decode kernel for {job.arch} is {job.cubin.name}", err=True)


def _step_of(folder: Path, quantization: str) -> tuple[Model, str]:
    """Return the persistent decode kernel's sizes for the model in a folder, and its weights' format.

    Raises:
        ModelUnsupported: the kernel cannot run this model.
    """
    from wisp_plan.hardware.kernel_formats import kernel_formats
    from wisp_plan.weights.held import held_weights
    from wisp_runtime.models.load import read_spec
    from wisp_runtime.ops.cuda.persistent.arguments import matrices
    from wisp_runtime.ops.cuda.persistent.model import kernel_model, step_format, unsupported_reason
    from wisp_runtime.ops.cuda.persistent.row_limits import MAX_SM_COUNT

    spec = read_spec(folder)
    if refusal := unsupported_reason(spec, MAX_SM_COUNT):
        raise ModelUnsupported(
            f"{folder}: no persistent decode kernel: {refusal}. It is served all the same, a kernel an op."
        )
    weights = held_weights(spec, quantization, kernel_formats(_WITH_PERSISTENT))
    formats = {
        weight.name: weight.held.name if weight.held else "bf16" for weight in weights if weight.is_matrix
    }
    held = step_format({name: formats[name] for name in matrices(spec) if name in formats})
    if ", " in held:
        raise ModelUnsupported(
            f"{folder}: no persistent decode kernel: its layers have weights in several formats ({held}). "
            "It is served all the same, a kernel an op."
        )
    return kernel_model(spec), held


@command.command("list")
@click.option("--arch", "architectures", multiple=True, metavar="ARCH", help="Only for these, e.g. sm_90a.")
@click.option("--device", type=click.IntRange(0), metavar="N", help="Only for this machine's GPU N.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(architectures: tuple[str, ...], device: int | None, as_json: bool) -> None:
    """Show the source of each op's kernel, and whether it is compiled.

    For each GPU with a folder, or the named ones; absent kernels are shown with their reasons.
    """
    from wisp_runtime.ops.cuda.device.catalogue import Catalogue
    from wisp_runtime.ops.cuda.device.listing import rows

    with exit_on_failure("what is compiled is kept"):
        catalogue = Catalogue()
        if device is not None:
            architectures = (_architecture(catalogue, device),)
        listed = rows(catalogue, architectures, kernels_dir())
    if as_json:
        click.echo(json.dumps(listed, indent=2))
    else:
        click.echo("\n".join(_table(listed)))


def _architecture(catalogue: Catalogue, device: int) -> str:
    try:
        from wisp_runtime.ops.cuda.device.gpu import capability_of
    except ImportError as error:
        raise GpuUnavailable(f"{error.name} is not installed. Run {install_command('cuda')}.") from error
    return catalogue.find(capability_of(device))[1]


def _table(listed: list[dict[str, Any]]) -> Iterator[str]:
    from wisp_plan.hardware.catalogue import (
        TRIED,  # the image's stage that compiles has it not, and lists nothing
    )

    width = max((len(row["op"]) for row in listed), default=0)
    titles = dict.fromkeys(map(_title, listed))
    for number, title in enumerate(titles):
        own = [row for row in listed if _title(row) == title]
        there = [row for row in own if row["source"] is not None]
        built, tried = sum(row["isBuilt"] for row in there), own[0]["hardware"] in TRIED
        yield from [""] if number else []
        yield f"{title}: {built} of {len(there)} compiled" + (
            "" if tried else "; no model has run on such a card"
        )
        for row in own:
            if row["source"] is None:
                yield f"  {row['op']:{width}}  absent: {row['why']}"
            else:
                state = "compiled" if row["isBuilt"] else "not compiled"
                yield f"  {row['op']:{width}}  {state:12}  {row['source']}  ({row['cubin']})"


def _title(row: dict[str, Any]) -> str:
    return f"{row['arch']}  {row['hardware']}/{row['model']}/{row['quantization']}"
