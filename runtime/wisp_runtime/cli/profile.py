"""``wisp-runtime profile``: breakdown of a step's time, as a table, an SVG chart and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wisp_runtime.cli.bench_options import (
    FORMATS,
    SETTINGS,
    SHAPE_HELP,
    format_options,
    keep_record,
    reported_failures,
)
from wisp_runtime.errors import ConfigError

if TYPE_CHECKING:
    from wisp_runtime.bench.profile.profiling import Step
    from wisp_runtime.bench.target import TargetOptions

EXAMPLES = """\b
Examples:
  wisp-runtime profile --shape llama-3-8b --batch 8 --context 512 --svg step.svg
  wisp-runtime profile --shape llama-3-8b --prompt 2048
  wisp-runtime profile --shape qwen3-30b-a3b --quantization fp8_block --batch 8
  wisp-runtime profile --shape llama-3-8b --whole --svg layer.svg
  wisp-runtime profile --shape toy --device cpu
"""


@click.command("profile", epilog=EXAMPLES, context_settings=SETTINGS)
@click.option(
    "--shape",
    required=True,
    metavar="NAME|DIR",
    help=SHAPE_HELP,
)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", show_default=True)
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Sequences.")
@click.option(
    "--context",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Tokens of each; not computed, but filled in.",
)
@click.option(
    "--prompt", type=click.IntRange(1), help="Profile a prefill step with prompts of N tokens instead."
)
@click.option("--whole", is_flag=True, help="Profile the persistent decode kernel (Hopper).")
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Steps to trace.")
@click.option("--max-step-tokens", type=click.IntRange(1), help="The prefill chunk (default: as serve).")
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: all).")
@format_options
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Write the chart there.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the record there."
)
@click.option("--commit", help="Commit of the code, for the record (default: git's HEAD).")
def command(**options: Any) -> None:
    """Show the time of each phase and kernel of a decode step, or of a prefill step.

    With --whole: of the persistent decode kernel, by its own clocks; the chart shows one layer, a line a
    thread block.

    Each kernel runs alone between two CUDA events, so the sum exceeds the step's time as served, where
    kernels overlap; that time is measured too and shown below. On the CPU, ops are timed instead of kernels:
    they never overlap, and the time as served has the work between them as well.
    """
    with reported_failures():
        _run(options)


def _run(options: dict[str, Any]) -> None:
    from wisp_runtime.bench.profile import breakdown, svg
    from wisp_runtime.bench.profile.profiling import Step, profile_step
    from wisp_runtime.bench.roofline import ceiling_of
    from wisp_runtime.bench.target import TargetOptions

    step = Step(options["batch"], options["context"], options["prompt"], options["steps"])
    same = {key: options[key] for key in ("shape", "device", "max_step_tokens", "threads", *FORMATS)}
    if options["whole"]:
        _run_persistent(options, TargetOptions(batch=step.batch, context=step.max_context, **same), step)
        return
    profile, target = profile_step(
        TargetOptions(batch=step.batch, context=step.max_context, decode_path="general", **same), step
    )
    click.echo(breakdown.show(profile, ceiling_of(target.gpu)))
    if options["svg"] is not None:
        options["svg"].write_text(svg.render(profile), encoding="utf-8")
    rows = breakdown.rows_of(profile, target, batch=step.batch, context=step.prompt or step.context)
    keep_record(f"profile-{Path(options['shape']).name}", options, rows)


def _run_persistent(options: dict[str, Any], target_options: TargetOptions, step: Step) -> None:
    from wisp_runtime.bench.profile import step_clocks, step_svg
    from wisp_runtime.bench.profile.profiling import profile_persistent_step

    if step.prompt is not None:
        raise ConfigError("--whole profiles decode steps: leave --prompt out")
    profiled = profile_persistent_step(target_options, step)
    if profiled is None:
        raise ConfigError("--whole: no persistent decode kernel for this model, batch and context here")
    title, intervals, target = profiled
    click.echo(step_clocks.show(title, intervals))
    if options["svg"] is not None:
        chart = step_svg.render(title, intervals, len(target.spec.layers) // 2)
        options["svg"].write_text(chart, encoding="utf-8")
    rows = step_clocks.rows_of(intervals, target, batch=step.batch, context=step.context)
    keep_record(f"profile-whole-{Path(options['shape']).name}", options, rows)
