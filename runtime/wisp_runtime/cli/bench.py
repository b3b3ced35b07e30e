"""``wisp-runtime bench``: benchmark the serving engine; rows on stdout, a JSON record with ``--json``.

Reads the command line; the benchmarks are in ``wisp_runtime.bench``. Benchmarks of a server in a process of
its own are in :mod:`.bench_served`, those of any OpenAI server in :mod:`.bench_load`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from wisp_runtime.cli import bench_load, bench_perplexity, bench_served
from wisp_runtime.cli.bench_options import FORMATS, SETTINGS, Numbers, engine_options, report

if TYPE_CHECKING:
    from wisp_runtime.bench.record import Row
    from wisp_runtime.bench.target import Target

EXAMPLES = """\b
Examples:
  wisp-runtime bench decode --shape llama-3-8b --batch 1,8,32 --context 512
  wisp-runtime bench first-token --shape llama-3-8b --prompt 128,512,2048,7900
  wisp-runtime bench prefill --shape llama-3-8b --batch 64 --prompt 512 --json prefill.json
  wisp-runtime bench memory --shape qwen3-8b
  wisp-runtime bench startup --shape llama-3-8b
  wisp-runtime bench perplexity ./Qwen3-8B ./Qwen3-8B-FP8 --text english.txt
  wisp-runtime bench load --url http://127.0.0.1:8000 --rates 5,15,30 --burst 400
  wisp-runtime bench decode --shape toy --device cpu       to try it without a GPU
"""
_MAX_WARM_UP_TOKENS = 48  # tokens that warm-up and rounding add to a context


@click.group("bench", epilog=EXAMPLES, context_settings=SETTINGS)
def command() -> None:
    """Measure decode steps, prefill, first tokens, memory, start-up, perplexity, and any server under load.

    The timed code is the engine's own loop, as it serves: planning, packing, the step, sampling, and the
    messages to the server. Each number comes with its roofline lower bound from the GPU's measured ceilings,
    and with other programs' numbers on the same GPU at the same shape, where known.
    """


@command.command(context_settings=SETTINGS)
@engine_options
@click.option("--batch", "batches", type=Numbers(), default="1,8,32", show_default=True, help="Sequences.")
@click.option(
    "--context", "contexts", type=Numbers(), default="512", show_default=True, help="Tokens of each at first."
)
@click.option(
    "--steps",
    type=click.IntRange(2),
    default=224,
    show_default=True,
    help="Measured steps, after 32 of warm-up.",
)
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-k", type=click.IntRange(0), default=0, show_default=True, help="0 keeps all.")
@click.option(
    "--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True, help="1 keeps all."
)
@click.option(
    "--against",
    type=click.Choice(["torch"]),
    help="Also time transformers: eager, compiled, continuous batching.",
)
@click.option(
    "--torch-python", default=sys.executable, metavar="PATH", help="A Python that has torch and transformers."
)
def decode(**options: Any) -> None:
    """Time decode steps at every batch and context.

    The contexts are not computed: their blocks are inserted into the prefix cache, and the KV cache is filled
    with random numbers. Every timed step is a real one; contexts grow by a token a step.
    """
    batches, contexts, steps = options["batches"], options["contexts"], options["steps"]
    sampling = {key: options[key] for key in ("temperature", "top_k", "top_p")}

    def rows() -> Iterator[Row]:
        from wisp_runtime.bench import steps as measure

        if options["against"]:
            yield from _torch_rows(options)
        target = _open(options, batch=max(batches), context=max(contexts) + steps + _MAX_WARM_UP_TOKENS)
        for context in contexts:
            for batch in batches:
                yield measure.decode_row(target, batch=batch, context=context, steps=steps, sampling=sampling)

    report("decode", options, rows)


@command.command(context_settings=SETTINGS)
@engine_options
@click.option(
    "--batch",
    "batches",
    type=Numbers(),
    default="64",
    show_default=True,
    help="Prompts that arrive together.",
)
@click.option(
    "--prompt",
    "--context",
    "prompts",
    type=Numbers(),
    default="512",
    show_default=True,
    help="Tokens of each.",
)
@click.option("--repeats", type=click.IntRange(1), default=3, show_default=True)
def prefill(**options: Any) -> None:
    """Measure the prompt tokens computed a second."""
    batches, prompts = options["batches"], options["prompts"]

    def rows() -> Iterator[Row]:
        from wisp_runtime.bench import steps as measure

        target = _open(options, batch=max(batches), context=max(prompts) + 1)
        for prompt in prompts:
            for batch in batches:
                yield measure.prefill_row(target, batch=batch, prompt=prompt, repeats=options["repeats"])

    report("prefill", options, rows)


@command.command("first-token", context_settings=SETTINGS)
@engine_options
@click.option(
    "--prompt",
    "--context",
    "prompts",
    type=Numbers(),
    default="128,512,2048",
    show_default=True,
    help="Tokens of a prompt.",
)
@click.option("--cached", is_flag=True, help="All but the last 16 tokens are in the prefix cache.")
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True)
def first_token(**options: Any) -> None:
    """Time a request on an idle engine, up to its first token."""

    def rows() -> Iterator[Row]:
        from wisp_runtime.bench import steps as measure

        target = _open(options, batch=1, context=max(options["prompts"]) + 1)
        yield from measure.first_token_rows(
            target, prompts=options["prompts"], repeats=options["repeats"], is_cached=options["cached"]
        )

    report("first-token", options, rows)


@command.command(context_settings=SETTINGS)
@engine_options
@click.option("--batch", type=click.IntRange(1), default=32, show_default=True, help="Sequences at a time.")
@click.option(
    "--context", type=click.IntRange(16), default=4096, show_default=True, help="Tokens a sequence may hold."
)
def memory(**options: Any) -> None:
    """Compare the ledger's prediction with the driver's count.

    The driver's count is read after the largest steps.
    """

    def rows() -> Iterator[Row]:
        from wisp_runtime.bench.memory import memory_rows

        yield from memory_rows(_target_options(options, batch=options["batch"], context=options["context"]))

    report("memory", options, rows)


def _torch_rows(options: dict[str, Any]) -> Iterator[Row]:
    from wisp_runtime.bench.baselines.comparison import torch_rows

    yield from torch_rows(
        options["shape"],
        batches=options["batches"],
        contexts=options["contexts"],
        steps=options["steps"],
        python=options["torch_python"],
        on_failure=lambda line: click.echo(line, err=True),
    )


def _target_options(options: dict[str, Any], *, batch: int, context: int) -> Any:
    from wisp_runtime.bench.target import TargetOptions

    same = {
        key: options[key]
        for key in (
            *("shape", "device", "max_step_tokens", "block_tokens", "threads", "seed"),
            *("decode_path", "deterministic", *FORMATS),
        )
    }
    return TargetOptions(batch=batch, context=context, **same)


def _open(options: dict[str, Any], *, batch: int, context: int) -> Target:
    from wisp_runtime.bench.target import open_target

    return open_target(_target_options(options, batch=batch, context=context))


command.add_command(bench_served.startup)
command.add_command(bench_served.serving)
command.add_command(bench_load.load)
command.add_command(bench_perplexity.command)
