"""``wisp demo``: the whole of Wisp in half a minute, on a real model and no GPU.

A small model is fetched once, served from zero as by :mod:`.up`, asked a question, and back at zero after it.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from wisp_operator.cli.commands.chat import Chat
from wisp_operator.cli.display.rows import PHASE_LABELS, Row, read
from wisp_operator.cli.gateway_client import GatewayClient
from wisp_operator.core.runtime_client import RuntimeClient
from wisp_operator.errors import WispError
from wisp_operator.local import config
from wisp_operator.local.machine.hardware import LocalFitChecker
from wisp_operator.local.machine.ports import free_port
from wisp_operator.local.manifest_files import ManifestFiles
from wisp_operator.local.session import Options, Session
from wisp_operator.local.session_folder import folder
from wisp_plan.distribution import install_command

MODEL = "smollm2"
QUESTION = "What is the capital of France, and what is it known for?"
MAX_TOKENS = 96
INTERRUPTED = 130
ASLEEP_WITHIN_S = 60.0
MANIFEST = """\
apiVersion: wisp.dev/v1alpha1
kind: InferenceModel
metadata:
  name: smollm2
spec:
  model:
    uri: file://{folder}
  gpu:
    count: 0            # 0: the CPU. Small models only, but no GPU needed to try it
  scaling:
    min: 0              # asleep when idle
    idleAfter: {idle}
"""
EXAMPLES = """\b
Examples:
  wisp demo
  wisp demo --question "Why is the sky blue?"
  wisp demo --manifest > smollm2.yaml && wisp up smollm2.yaml
"""


class DemoFailed(WispError):
    """The example model could not be fetched, or did not answer."""


@click.command("demo", epilog=EXAMPLES)
@click.option("--question", default=QUESTION, show_default=True, help="What to ask.")
@click.option(
    "--manifest", "only_manifest", is_flag=True, help="Only fetch the model and print its manifest."
)
def command(question: str, only_manifest: bool) -> None:
    """Serve a small example model, ask it a question, show it asleep again."""
    model = example_model()
    if only_manifest:
        click.echo(MANIFEST.format(folder=model, idle="5m"), nl=False)
        return
    with folder(None, config.temporary_dir()) as home:
        text = MANIFEST.format(folder=model, idle="3s")
        (home / "smollm2.yaml").write_text(text)
        _print("One file says what to serve:\n")
        click.secho("".join(f"    {line}\n" for line in text.splitlines()), dim=True)
        if not asyncio.run(_show(ManifestFiles([home / "smollm2.yaml"]), home, question)):
            raise click.exceptions.Exit(INTERRUPTED)


def example_model() -> Path:
    """Fetch and convert the example model once, with the runtime's progress on stderr; return its folder.

    Raises:
        DemoFailed: the runtime could not, and has printed the reason.
    """
    program = config.program(config.RUNTIME)
    if program is None:
        raise DemoFailed(f"{config.RUNTIME} is not installed. Install it with: {install_command('runtime')}")
    command = [program, *example_arguments(config.cache_dir())]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise DemoFailed("the example model is not to be had, for the reason above.")
    return Path(done.stdout.strip())


def example_arguments(cache_dir: Path) -> list[str]:
    """The runtime's command line that makes the example model and prints its folder."""
    return ["example", "--cache-dir", str(cache_dir)]


async def _show(files: ManifestFiles, home: Path, question: str) -> bool:
    """Run the demo; False if the user stopped it."""
    options = Options(port=free_port(), device="cpu", log_level="warning")
    session = Session(options, files, home, LocalFitChecker("cpu"))
    async with session.running():
        acts = asyncio.create_task(_play(session, question))
        stopped = asyncio.create_task(session.stopping.wait())
        await asyncio.wait({acts, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if acts.done():
            await acts
        acts.cancel()
        if session.stopping.is_set():
            session.stop()  # the rest of the answer is not needed
        return not session.stopping.is_set()


async def _play(session: Session, question: str) -> None:
    gateway = GatewayClient(session.url)
    _print(f"$ wisp up smollm2.yaml          → {session.url}/v1\n")
    _print_row(await _row(gateway), "no process runs, no memory is held")
    _print(f"\n> {question}")
    began = time.monotonic()
    first = await asyncio.to_thread(_ask, gateway, question)
    row, runtime = await _row(gateway), await _runtime(session, gateway)
    _print(f"\n{first - began:.1f} s from zero to the first token: {_phases(runtime)}")
    _print(_speed(runtime) + "\n")
    _print_row(row, "and after 3 s without a request …")
    await _until_asleep(gateway)
    _print_row(await _row(gateway), "its memory is free again")
    _print("\nNext:  source .venv/bin/activate                  in a clone, in each terminal")
    _print("       wisp demo --manifest > smollm2.yaml && wisp up smollm2.yaml")
    _print("       wisp chat smollm2 --temperature 0         in a second terminal")


def _ask(gateway: GatewayClient, question: str) -> float:
    """Print the answer as it comes; return the time of its first delta, in monotonic seconds."""
    times: list[float] = []
    chat = Chat(gateway, MODEL, None, {"temperature": 0, "max_tokens": MAX_TOKENS})
    chat.send(question, on_delta=lambda: times.append(time.monotonic()))
    if not times:
        raise DemoFailed("the model gave an empty answer; run `wisp doctor`, then try again.")
    return times[0]


async def _row(gateway: GatewayClient) -> Row:
    return read(await asyncio.to_thread(gateway.state))[0]


async def _runtime(session: Session, gateway: GatewayClient) -> dict[str, Any]:
    """The ``/state`` of the pod that answered."""
    client = RuntimeClient()
    try:
        state = await asyncio.to_thread(gateway.state)
        row = state["models"][0]
        endpoints: Sequence[dict[str, Any]] = row["endpoints"]
        token = session.tokens.of_pods(f"{row['namespace']}/{row['name']}")
        return await client.document(endpoints[0]["address"], token) if endpoints else {}
    finally:
        await client.close()


async def _until_asleep(gateway: GatewayClient) -> None:
    deadline = time.monotonic() + ASLEEP_WITHIN_S
    while (row := await _row(gateway)).state != "Asleep" or row.pods:
        if time.monotonic() > deadline:
            raise DemoFailed(f"the model did not go back to zero in {ASLEEP_WITHIN_S:.0f} s: {row.message}")
        await asyncio.sleep(0.1)


def _phases(runtime: dict[str, Any]) -> str:
    named = [(PHASE_LABELS.get(p["name"], p["name"]), p["seconds"]) for p in runtime.get("phases", ())]
    return ", ".join(f"{words} {seconds:.1f}" for words, seconds in named if seconds >= 0.05)


def _speed(runtime: dict[str, Any]) -> str:
    load = runtime.get("load", {})
    return (
        f"{load.get('generatedTokensTotal', 0)} tokens; {runtime.get('device', 'cpu')}, {_kernels(runtime)}"
    )


def _kernels(runtime: dict[str, Any]) -> str:
    return str(runtime.get("kernels", {}).get("set", "unknown kernels"))


def _print_row(row: Row, remark: str) -> None:
    mark, colour = {"Asleep": ("○ asleep", None), "Ready": ("● ready", "green")}.get(
        row.state, (row.state, "yellow")
    )
    click.echo(f"  {row.name}  {click.style(mark, fg=colour)}   {click.style(remark, dim=True)}")


def _print(text: str) -> None:
    click.echo(text)
