"""``wisp-runtime bench load``: open-loop load on any OpenAI server, over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wisp_runtime.cli.bench_options import SETTINGS, Numbers, reported_failures
from wisp_runtime.cli.progress import OnProgress, counted, ignore

if TYPE_CHECKING:
    from wisp_runtime.bench.load.client import ClientCost
    from wisp_runtime.bench.load.requests import Address, RequestOptions
    from wisp_runtime.bench.load.stream import Streamed
    from wisp_runtime.bench.load.summary import LoadRow
    from wisp_runtime.bench.load.trace import Stage

EXAMPLES = """\b
Examples:
  wisp-runtime bench load --url http://127.0.0.1:8080
  wisp-runtime bench load --url http://127.0.0.1:8000 --model llama --rates 5,15,30,40 --burst 400
  wisp-runtime bench load --url http://127.0.0.1:8000 --rates 10 --seconds 60 --json load.json
  wisp-runtime bench load --url http://127.0.0.1:8000 --alone 128,512,2048     an idle server's first token
  wisp-runtime bench load --url https://host --endpoint chat --no-ignore-eos   where only chat is served
"""


class Rates(click.ParamType[Any]):
    """Numbers above zero, separated by commas."""

    name = "R,R,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a value from the command line."""
        if not isinstance(value, str):
            return value
        try:
            rates = tuple(float(part) for part in value.split(","))
        except ValueError:
            rates = ()
        if not rates or not all(0 < rate < 1e6 for rate in rates):
            return self.fail(f"{value!r} is not a list of numbers above zero such as 5,15,30.", param, ctx)
        return rates


@click.command(context_settings=SETTINGS, epilog=EXAMPLES)
@click.option("--url", required=True, metavar="URL", help="The server: http://HOST:PORT, or https.")
@click.option("--model", metavar="NAME", help="Name of the model (default: the only one of /v1/models).")
@click.option("--rates", type=Rates(), metavar="R,R,…", help="Requests a second, a stage each; Poisson.")
@click.option("--burst", type=Numbers(), metavar="N,N,…", help="Requests at once, a stage each.")
@click.option("--alone", type=Numbers(), metavar="N,N,…", help="Prompt tokens: one request at a time.")
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True, help="Requests of --alone.")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=20.0,
    show_default=True,
    help="Time of arrivals at each rate; the stage ends with its last answer.",
)
@click.option(
    "--prompt-tokens", type=click.IntRange(1), default=300, show_default=True, help="Median of prompts."
)
@click.option(
    "--output-tokens", type=click.IntRange(2), default=150, show_default=True, help="Median of answers."
)
@click.option(
    "--spread",
    type=click.FloatRange(0, 3),
    default=0.6,
    show_default=True,
    help="Spread of the log-normal lengths, within 8 x of the median; 0: all equal.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of arrivals, lengths and prompts.")
@click.option(
    "--endpoint",
    type=click.Choice(["completions", "chat"]),
    default="completions",
    show_default=True,
    help="chat takes --prompts words.",
)
@click.option(
    "--prompts",
    type=click.Choice(["ids", "words"]),
    default="ids",
    show_default=True,
    help="Random token ids, so that lengths are exact, or random words for servers without ids.",
)
@click.option(
    "--vocab", type=click.IntRange(2), default=256, show_default=True, help="Upper bound of token ids."
)
@click.option(
    "--ignore-eos/--no-ignore-eos",
    default=True,
    show_default=True,
    help="Ask for answers of the full length; off for servers that refuse the field.",
)
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, metavar="KEY", help="Bearer token.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=120.0,
    show_default=True,
    help="Seconds of a request.",
)
@click.option("--warm-up", type=click.IntRange(0), default=4, show_default=True, help="Unmeasured requests.")
@click.option("--server", metavar="NAME", help="Name of the server in the rows (default: the model's).")
@click.option(
    "--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the record there."
)
@click.option("--name", default="load", show_default=True, help="Name of the record.")
@click.option("--commit", help="Commit of the server's code, for the record (default: git's HEAD).")
def load(**options: Any) -> None:
    """Load any OpenAI server with open-loop arrivals.

    Poisson arrivals at each rate, a burst, or one request after the other. Open loop: a request is sent at
    its time, whatever became of the ones before. A seed gives every server the same requests. Reported are
    percentiles of the time to the first token and of the mean time per token after it, failures, and tokens
    a second; and the client's own lateness, which bounds the error of the rest. Without --rates, --burst and
    --alone: --rates 5,15,30,40.
    """
    from wisp_runtime.bench.load.summary import show
    from wisp_runtime.bench.record import make_record, write_record

    with reported_failures():
        address, settings = _settings(options)
        rows: list[LoadRow] = []
        for row in _rows(address, settings, options):
            click.echo(show(row))
            rows.append(row)
            if (
                options["json_path"] is not None
            ):  # after each stage, so that an interrupted run leaves its own
                typed = ["wisp-runtime", *sys.argv[1:]]
                device = "cuda" if address.is_local else "cpu"
                record = make_record(
                    options["name"], rows, device=device, command=typed, commit=options["commit"]
                )
                write_record(options["json_path"], record)
    if any(row.failed == row.requests for row in rows):
        sys.exit(1)


def _settings(options: dict[str, Any]) -> tuple[Address, RequestOptions]:
    from wisp_runtime.bench.load.client import only_model, served_models
    from wisp_runtime.bench.load.requests import Address, RequestOptions

    address = Address.parse(options["url"])
    model = options["model"] or only_model(served_models(address, options["api_key"]))
    return address, RequestOptions(
        model,
        options["endpoint"],
        options["prompts"],
        options["vocab"],
        options["api_key"],
        options["ignore_eos"],
        options["temperature"],
    )


def _stages(options: dict[str, Any]) -> Iterator[Stage]:
    from wisp_runtime.bench.load.trace import Lengths, burst_stage, poisson_stage, sequential_stage

    lengths = Lengths(options["prompt_tokens"], options["output_tokens"], options["spread"])
    for prompt_tokens in options["alone"] or ():
        yield sequential_stage(prompt_tokens, options["output_tokens"], options["repeats"])
    is_default = not (options["rates"] or options["burst"] or options["alone"])
    for rate_per_s in (5.0, 15.0, 30.0, 40.0) if is_default else options["rates"] or ():
        yield poisson_stage(rate_per_s, options["seconds"], lengths, options["seed"])
    for count in options["burst"] or ():
        yield burst_stage(count, lengths, options["seed"])


def _rows(address: Address, settings: RequestOptions, options: dict[str, Any]) -> Iterator[LoadRow]:
    from wisp_runtime.bench.load.client import run_stage
    from wisp_runtime.bench.load.requests import encode_requests
    from wisp_runtime.bench.load.summary import summarize
    from wisp_runtime.bench.load.trace import sequential_stage

    def run(stage: Stage, seed: int, on_progress: OnProgress) -> tuple[list[Streamed], ClientCost]:
        requests = encode_requests(address, settings, stage.arrivals, seed)
        return run_stage(address, requests, stage, options["timeout"], on_progress)

    if options["warm_up"]:
        run(sequential_stage(options["prompt_tokens"], 8, options["warm_up"]), options["seed"] - 1, ignore)
    for number, stage in enumerate(_stages(options)):
        seed = options["seed"] + 1000 * number
        if stage.is_sequential and options["warm_up"]:
            run(replace(stage, arrivals=stage.arrivals[:1]), seed + 1, ignore)
        with counted(stage.name) as on_progress:
            streams, cost = run(stage, seed, on_progress)
        yield summarize(options["server"] or settings.model, stage.name, streams, cost)
