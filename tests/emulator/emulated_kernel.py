"""Compile a kernel for the emulated machine, keep the result, and launch it on NumPy arrays."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from translate import HERE, translate

KERNELS = HERE.parent.parent / "kernels"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "wisp/emulated"
_COMPILE = ("g++", "-std=c++20", "-O2", "-w", "-fPIC")
_KINDS = {".o": ("-c",), ".so": ("-shared",)}

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or platform.machine() != "x86_64",
    reason="the emulated GPU is compiled by g++, for x86-64",
)


class DidNotEnd(Exception):
    """A kernel trapped, did what no kernel may, or waited for what never came."""


class TensorMap(ctypes.Structure):
    """A box of rows of a matrix ``[rows, columns]`` of two-byte elements: ``include/cuda.h``."""

    _fields_ = (
        ("base", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("rows", "columns")),
        *((name, ctypes.c_int32) for name in ("box_rows", "box_columns")),
        ("unused", ctypes.c_char * 96),
    )


def tensor_map(matrix: np.ndarray, box_rows: int, box_columns: int) -> TensorMap:
    """Describe ``matrix``, contiguous."""
    return TensorMap(matrix.ctypes.data, *matrix.shape, box_rows, box_columns)


class Emulated:
    """The kernels of one source file.

    Args:
        source: the ``.cu`` file.
        defines: options of the preprocessor.
    """

    def __init__(self, source: Path, defines: list[str]) -> None:
        self._library = _library(source, tuple(defines))

    def launch(
        self,
        kernel: str,
        arguments: list[ctypes.Structure],
        *,
        blocks: int | tuple[int, int, int],
        threads: int,
        cluster: int = 1,
        seed: int,
    ) -> None:
        """Run a grid of ``blocks``.

        Raises:
            DidNotEnd: says which thread ended it, and why.
        """
        launch = getattr(self._library, f"launch_{kernel}")
        launch.restype = ctypes.c_char_p
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        grid = (ctypes.c_uint * 3)(*((blocks, 1, 1) if isinstance(blocks, int) else blocks))
        if why := launch(grid, threads, cluster, seed, pointers):
            raise DidNotEnd(why.decode())


@cache  # tests that change a source do so in folders of their own
def _library(source: Path, defines: tuple[str, ...]) -> ctypes.CDLL:
    text = translate(source, [KERNELS / "include", source.parent], [*defines])
    return ctypes.CDLL(str(_compiled(text)))


def _compiled(text: str) -> Path:
    """Return the library of a kernel's text, headers and all; one that was made before, if any."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    machine = _made(".o", (HERE / "machine.cpp").read_text(), [(HERE / "machine.h").read_text()])
    return _made(".so", text, [machine.name], machine)


def _made(kind: str, text: str, others: list[str], *linked: Path) -> Path:
    """Compile a text, unless that was done before; ``others`` stand for what else the result depends on."""
    digest = hashlib.sha256("\0".join((text, *others, *_COMPILE)).encode()).hexdigest()
    result = _CACHE / f"{digest[:24]}{kind}"
    if not result.exists():
        source = result.with_suffix(f".{os.getpid()}.cpp")
        source.write_text(text)
        made = source.with_suffix(kind)
        try:
            command = [*_COMPILE, *_KINDS[kind], f"-I{HERE}", str(source), *map(str, linked), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            made.replace(result)
        finally:
            source.unlink()
    return result
