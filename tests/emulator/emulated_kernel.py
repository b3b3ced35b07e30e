"""Compile a kernel for the emulated machine, keep the result, and launch it on NumPy arrays."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from translate import HERE, translate

KERNELS = HERE.parent.parent / "kernels"
_CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "wisp/emulated"
_COMPILE = ("g++", "-std=c++20", "-O2", "-w", "-fPIC", "-shared")

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
        text = translate(source, [KERNELS / "include", source.parent], defines)
        self._library = ctypes.CDLL(str(_compiled(text)))

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


def _compiled(text: str) -> Path:
    machine = HERE / "machine.cpp"
    parts = (text, machine.read_text(), (HERE / "machine.h").read_text(), " ".join(_COMPILE))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    library = _CACHE / f"{digest[:24]}.so"
    if not library.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        source = library.with_suffix(f".{os.getpid()}.cpp")
        source.write_text(text)
        made = source.with_suffix(".so")
        try:
            command = [*_COMPILE, f"-I{HERE}", str(source), str(machine), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            made.replace(library)
        finally:
            source.unlink()
    return library
