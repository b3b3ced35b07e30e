"""``wisp-runtime profile``: where a step's time goes, as a table, a picture and JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wisp_runtime.cli.measuring import SETTINGS, SHAPE_HELP, keep_record, told_failures
from wisp_runtime.errors import ConfigError

if TYPE_CHECKING:
    from wisp_runtime.bench.profile.profiling import Step
    from wisp_runtime.bench.target import Wanted

EXAMPLES = """\b
Examples:
  wisp-runtime profile --shape llama-3-8b --batch 8 --context 512 --svg step.svg
  wisp-runtime profile --shape llama-3-8b --prompt 2048
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
    help="Tokens each has; placed, not computed.",
)
@click.option(
    "--prompt", type=click.IntRange(1), help="Take apart a step that computes prompts of N tokens instead."
)
@click.option("--whole", is_flag=True, help="Take a decode step in one launch apart (Hopper).")
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Steps to take apart.")
@click.option("--max-step-tokens", type=click.IntRange(1), help="The prefill chunk (default: as serve).")
@click.option("--threads", type=click.IntRange(1), help="CPU threads (default: all).")
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Draw the picture there.")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the record there."
)
@click.option("--commit", help="Of the code, for the record (default: git is asked).")
def command(**options: Any) -> None:
    """Show the time of each phase and kernel of a decode step, or of a prefill step.

    With --whole: of a decode step in one launch, by its own clocks; the picture is one layer's, a line a
    thread block.

    Each kernel stands alone between two CUDA events, so the sum is more than the step takes as served, where
    they overlap; that time is measured too and shown beneath. On the CPU an op is what a kernel is on a GPU.
    """
    with told_failures():
        _run(options)


def _run(options: dict[str, Any]) -> None:
    from wisp_runtime.bench.profile import breakdown, svg
    from wisp_runtime.bench.profile.profiling import Step, profile_step
    from wisp_runtime.bench.roofline import ceiling_of
    from wisp_runtime.bench.target import Wanted

    step = Step(options["batch"], options["context"], options["prompt"], options["steps"])
    same = {key: options[key] for key in ("shape", "device", "max_step_tokens", "threads")}
    if options["whole"]:
        _run_whole(options, Wanted(batch=step.batch, context=step.room, **same), step)
        return
    profile, subject = profile_step(
        Wanted(batch=step.batch, context=step.room, decode_path="general", **same), step
    )
    click.echo(breakdown.show(profile, ceiling_of(subject.gpu)))
    if options["svg"] is not None:
        options["svg"].write_text(svg.draw(profile), encoding="utf-8")
    rows = breakdown.rows_of(profile, subject, batch=step.batch, context=step.prompt or step.context)
    keep_record(f"profile-{Path(options['shape']).name}", options, rows)


def _run_whole(options: dict[str, Any], wanted: Wanted, step: Step) -> None:
    from wisp_runtime.bench.profile import step_clocks, step_svg
    from wisp_runtime.bench.profile.profiling import profile_whole_step

    if step.prompt is not None:
        raise ConfigError("--whole is of decode steps: leave --prompt out")
    found = profile_whole_step(wanted, step)
    if found is None:
        raise ConfigError("--whole: decode steps of this model, batch and context are a launch an op here")
    title, pieces, subject = found
    click.echo(step_clocks.show(title, pieces))
    if options["svg"] is not None:
        picture = step_svg.draw(title, pieces, len(subject.spec.layers) // 2)
        options["svg"].write_text(picture, encoding="utf-8")
    rows = step_clocks.rows_of(pieces, subject, batch=step.batch, context=step.context)
    keep_record(f"profile-whole-{Path(options['shape']).name}", options, rows)
