"""The Dockerfile: its stage of kernels copies every file that compiling needs; packages come by hash."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
STAGES = dict(re.findall(r"(?ms)^FROM \S+ AS (\S+)\n(.*?)(?=^FROM |\Z)", (ROOT / "Dockerfile").read_text()))


def test_the_kernels_stage_copies_what_compiling_imports(tmp_path):
    for line in re.findall(r"(?m)^COPY (?!\.ci)(.*)$", STAGES["kernels"]):
        *sources, target = line.split()
        for source in sources:
            to = tmp_path / target / Path(source).name if target.endswith("/") else tmp_path / target
            to.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / source).is_dir() else shutil.copy)(ROOT / source, to)
    # Without site-packages: of .ci/requirements/kernels.txt, click alone is imported.
    (tmp_path / "runtime/click").symlink_to(Path(click.__file__).parent)
    command = [sys.executable, "-S", "-c", "from wisp_runtime.cli.main import main; main()"]
    arguments = ["kernels", "build", "--nvcc", "/nowhere/nvcc", "--out", str(tmp_path / "out")]
    environment = {"PYTHONPATH": str(tmp_path / "runtime"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "CompilerMissing" in done.stderr, done.stderr
    assert "/nowhere/nvcc is not there" in done.stderr


def test_every_installation_is_of_locked_files():
    for stage, text in STAGES.items():
        for install in re.findall(r"pip (?:--python \S+ )?install [^&\"]*", text):
            is_ours = "--no-deps" in install
            assert is_ours or "--require-hashes" in install, f"{stage}: {install}"
    for name in set(re.findall(r"requirements/([\w$-]+)\.txt", (ROOT / "Dockerfile").read_text())):
        for flavour in ("cpu", "cuda"):
            assert (ROOT / ".ci/requirements" / f"{name.replace('$FLAVOUR', flavour)}.txt").exists()
