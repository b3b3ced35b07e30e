"""``wisp up FILE…``: a cluster of one machine, as a live table on a terminal and as log lines elsewhere."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from wisp_operator.api import InferenceModel
from wisp_operator.cli.display.rows import read
from wisp_operator.core.runtime_client import RuntimeClient
from wisp_operator.errors import WispError
from wisp_operator.local import config
from wisp_operator.local.machine.hardware import LocalFitChecker
from wisp_operator.local.machine.ports import free_port, require_free
from wisp_operator.local.manifest_files import ManifestFiles
from wisp_operator.local.session import Options, Session
from wisp_operator.local.session_folder import folder

REFRESH_S = 0.25
MAX_EVENTS_SHOWN = 5
STOPPING = "stopping; Ctrl-C again to stop at once"
EXAMPLES = """\b
Examples:
  wisp up model.yaml
  wisp up chat.yaml code.yaml --port 9000 --device cpu
  wisp up model.yaml --open                 opens the gateway's page in a browser
  wisp up model.yaml --state-dir ./run      keeps the logs of pods and gateway
"""


class NoBrowser(WispError):
    """``--open`` found no browser."""


@click.command("up", epilog=EXAMPLES)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8080,
    show_default=True,
    help="Of the gateway; 0 picks one.",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address of the gateway; 0.0.0.0 for all."
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where models run; auto: as the manifest says, on the CPU where there is no GPU.",
)
@click.option(
    "--api-keys",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with one key a line, for models with spec.access.apiKeySecretRef.",
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Let web pages of this origin call the gateway from a browser (CORS); * for all; repeatable.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep logs here; default: a temporary folder, removed at the end.",
)
@click.option("--open", "opens_page", is_flag=True, help="Open the gateway's page in a browser.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
def command(files: Sequence[Path], state_dir: Path | None, *, opens_page: bool, **chosen: Any) -> None:
    """Serve the models of FILES on this machine.

    The same manifests, fit check, gateway, wake and scale to zero as on a cluster; pods are processes.
    Files are read again when they change. Ctrl-C ends everything.
    """
    open_page = browser_opener() if opens_page else None
    fitting = LocalFitChecker(chosen["device"])
    manifests = ManifestFiles(files)
    options = Options(
        **{**chosen, "port": chosen["port"] or free_port()}, are_logs_kept=state_dir is not None
    )
    require_free(options.host, options.port)
    with folder(state_dir, config.temporary_dir()) as home:
        asyncio.run(_serve(options, manifests, home, fitting, open_page))


async def _serve(
    options: Options,
    manifests: ManifestFiles,
    home: Path,
    fitting: LocalFitChecker,
    open_page: Callable[[str], object] | None,
) -> None:
    session = Session(options, manifests, home, fitting)
    on_terminal = sys.stdout.isatty()
    events = _log_to_table(session) if on_terminal else _log_to_lines(session)
    async with session.running():
        if open_page is not None:
            await asyncio.to_thread(open_page, session.url)
        if on_terminal:
            await _show_table(session, events)
        else:
            click.echo(f"{session.url}/v1")
            click.echo(f"open {session.url} in a browser to see and try the models", err=True)
            await session.stopping.wait()
            logging.getLogger(__name__).info(STOPPING)


async def _show_table(session: Session, events: deque[str]) -> None:
    from rich.console import Console
    from rich.live import Live

    from wisp_operator.cli.display.table import render

    client, address = RuntimeClient(), session.url.removeprefix("http://")
    try:
        with Live(console=Console(), auto_refresh=False, transient=False) as live:
            while True:
                notice = STOPPING if session.stopping.is_set() else ""
                rows = read(await client.document(address))
                sleep, keys = idle_after_s(session.models), key_files(session)
                live.update(
                    render(rows, session.url, sleep, list(events), key_files=keys, notice=notice),
                    refresh=True,
                )
                if notice:
                    return
                await _pause(session.stopping)
    finally:
        await client.close()


def browser_opener() -> Callable[[str], object]:
    """Return what opens a URL in a browser.

    Raises:
        NoBrowser: this machine has none.
    """
    import webbrowser

    try:
        return webbrowser.get().open
    except webbrowser.Error as error:
        raise NoBrowser(
            "--open: no browser was found here. Leave --open out, and open the address that `wisp up` prints "
            "where there is one; or name a browser's program in the variable BROWSER."
        ) from error


async def _pause(stopping: asyncio.Event) -> None:
    try:
        await asyncio.wait_for(stopping.wait(), REFRESH_S)
    except TimeoutError:
        return


def idle_after_s(models: Sequence[InferenceModel]) -> dict[str, float]:
    """By model, after how long without a request it goes to zero."""
    scaled = {model.key: model.spec.autoscaling for model in models}
    return {key: scaling.idle_after.seconds for key, scaling in scaled.items() if scaling and not scaling.min}


def key_files(session: Session) -> dict[str, Path]:
    """By model, the file of the keys that its callers need."""
    file = session.options.api_keys
    guarded = (model.key for model in session.models if model.spec.access.api_key_secret_ref)
    return dict.fromkeys(guarded, file) if file is not None else {}


def _log_to_lines(session: Session) -> deque[str]:
    logging.basicConfig(
        level=session.options.log_level.upper(),
        format="%(asctime)s %(levelname)-7s %(message)s",
        stream=sys.stderr,
    )
    return deque()


def _log_to_table(session: Session) -> deque[str]:
    """Keep the last lines for the table, and all of them in a file."""
    events: deque[str] = deque(maxlen=MAX_EVENTS_SHOWN)
    logging.basicConfig(
        level=session.options.log_level.upper(),
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        handlers=[_Keeper(events), logging.FileHandler(session.home / "wisp.log")],
    )
    return events


class _Keeper(logging.Handler):
    """Keeps formatted lines."""

    def __init__(self, events: deque[str]) -> None:
        super().__init__()
        self._events = events

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one message, without the traceback that the log file has."""
        shown = logging.makeLogRecord({**record.__dict__, "exc_info": None, "exc_text": None})
        self._events.append(self.format(shown))
