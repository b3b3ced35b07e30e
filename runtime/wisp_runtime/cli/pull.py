"""``wisp-runtime pull MODEL``: fetch a model into the cache, as a pod's start does, and print its folder."""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

from wisp_runtime.cli.progress import OnProgress, progress
from wisp_runtime.config import DEFAULT_CACHE_DIR
from wisp_runtime.errors import RuntimeFailure

EXAMPLES = """\b
Examples:
  wisp-runtime pull hf://Qwen/Qwen3-0.6B
  wisp-runtime pull hf://Qwen/Qwen3-0.6B --revision v1.1 --cache-dir /mnt/cache
  wisp-runtime pull s3://models/qwen3-0.6b --repair      verifies every byte, refetches damaged files
"""


@click.command("pull", epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model")
@click.option("--revision", metavar="REV", help="Hub revision: a branch, a tag or a commit.")
@click.option(
    "--cache-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_CACHE_DIR,
    show_default=True,
    envvar="WISP_CACHE_DIR",
    show_envvar=True,
    help="Folder of downloads.",
)
@click.option("--repair", is_flag=True, help="Verify every byte of the copy and refetch damaged files.")
@click.option("--json", "as_json", is_flag=True, help="Print the folder and its files as JSON.")
@click.option(
    "--termination-log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File that gets the error as JSON (Kubernetes: /dev/termination-log).",
)
def command(
    model: str,
    revision: str | None,
    cache_dir: Path,
    repair: bool,
    as_json: bool,
    termination_log: Path | None,
) -> None:
    """Fetch MODEL (hf://ORG/NAME or s3://BUCKET/PREFIX) into the cache and print its folder.

    Files in the cache are not fetched again; an interrupted download resumes. Several processes may pull the
    same model: one fetches it, the others wait.
    """
    logging.basicConfig(level="WARNING", format="wisp-runtime: %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # process 1 of a container has no default
    began_s = time.monotonic()
    try:
        with progress(f"pulling {model}") as on_progress:
            folder = _pull(model, revision, cache_dir, repair, on_progress)
            facts = _facts(model, folder)
    except RuntimeFailure as error:
        sys.exit(_report(error, termination_log))
    except KeyboardInterrupt:
        click.echo("interrupted; fetched data is kept, and the next pull resumes there", err=True)
        sys.exit(130)
    took = {"seconds": round(time.monotonic() - began_s, 3)}
    click.echo(json.dumps(facts | took) if as_json else folder)


def _pull(model: str, revision: str | None, cache_dir: Path, repair: bool, on_progress: OnProgress) -> Path:
    from wisp_runtime.sources import store
    from wisp_runtime.sources.resolve import resolve, source_of

    if repair and (source := source_of(model, revision)):
        return store.repair(source, cache_dir, on_progress)
    return resolve(model, revision, cache_dir, on_progress)


def _facts(model: str, folder: Path) -> dict[str, Any]:
    """Return model, folder and, for a fetched model, revision and files."""
    from wisp_runtime.sources.manifest import MANIFEST_FILE, read_manifest

    facts: dict[str, Any] = {"model": model, "folder": str(folder)}
    if not (folder / MANIFEST_FILE).exists():
        return facts
    manifest = read_manifest(folder)
    return facts | {
        "revision": manifest.revision,
        "bytes": manifest.size_bytes,
        "files": {file.name: file.digest for file in manifest.files},
    }


def _report(error: RuntimeFailure, termination_log: Path | None) -> int:
    from wisp_runtime.server.startup_log import failure_of, report_failure

    report_failure(failure_of(error), termination_log)
    return error.exit_code
