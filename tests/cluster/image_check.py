"""Check an image from inside it: `python3 - operator|runtime < image_check.py` in a container.

images.sh runs it as the image's user on a read-only root. Prints one line; raises what is wrong.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

PLANES = {
    "operator": (
        ("wisp_operator", "wisp_gateway", "wisp_plan", "wisp_http"),
        ("wisp_runtime", "numpy", "cupy", "starlette"),
    ),
    "runtime": (
        ("wisp_runtime", "wisp_plan", "wisp_http"),
        ("wisp_operator", "wisp_gateway", "kopf", "kubernetes", "gguf"),
    ),
}
NEVER = ("pip", "setuptools", "ensurepip", "idlelib", "test", "tkinter", "torch")
COMMANDS = {
    "operator": (
        ["wisp", "--version"],
        ["wisp-gateway", "--help"],
        ["python3", "-m", "wisp_operator.main", "--help"],
    ),
    "runtime": (
        ["wisp-runtime", "--version"],
        ["wisp-runtime", "serve", "--help"],
        ["wisp-runtime", "kernels", "list"],
    ),
}
MAX_PACKAGES = 53  # ten of them, 6.7 MB, are OpenTelemetry and its protobuf: imported where traces are on
HAS_GPU_LIBRARIES = importlib.util.find_spec("cupy") is not None
GPU_LIBRARIES = () if HAS_GPU_LIBRARIES else ("cupy", "cuda")  # modules that want them are left out then


def import_everything(packages):
    """Import every module of ours that a container of this image may run."""
    for name in packages:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, name + "."):
            try:
                if not module.name.endswith("__main__") and ".convert" not in module.name:
                    importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name not in GPU_LIBRARIES:
                    raise


def without_cubin():
    """Ops of the kernel sets that have a source and no cubin."""
    listing = subprocess.run(["wisp-runtime", "kernels", "list", "--json"], check=True, capture_output=True)
    return [
        (row["arch"], row["op"]) for row in json.loads(listing.stdout) if row["source"] and not row["isBuilt"]
    ]


def uncompiled():
    """Loaded modules whose bytecode is missing or older than its source."""
    for name, module in list(sys.modules.items()):
        if type(module).__name__ == "_LazyModule":  # CuPy's unused parts: an access would load them
            continue
        source, compiled = getattr(module, "__file__", None) or "", getattr(module, "__cached__", None)
        if source.endswith(".py") and compiled and name != "__main__":
            written = Path(compiled).read_bytes()[8:12] if Path(compiled).exists() else b""
            if written != (int(os.stat(source).st_mtime) & 0xFFFFFFFF).to_bytes(4, "little"):
                yield name


def check(plane):
    """Check everything about an image of this plane."""
    ours, foreign = PLANES[plane]
    assert os.getuid() == os.getgid() == 65532
    assert not any(
        Path(shell).exists() for shell in ("/bin/sh", "/bin/bash", "/usr/bin/apt-get", "/usr/bin/dpkg")
    )
    assert os.statvfs("/").f_flag & os.ST_RDONLY, "the check is meant for a read-only root"
    found = [name for name in (*NEVER, *foreign) if importlib.util.find_spec(name)]
    assert not found, f"not meant to be in the image: {found}"
    tests = [str(path) for path in Path("/opt/wisp/lib").rglob("tests") if path.is_dir()]
    assert not tests, f"tests in the image: {tests[:3]}"
    for command in COMMANDS[plane]:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    if plane == "runtime" and HAS_GPU_LIBRARIES:
        assert not (lacking := without_cubin()), f"kernels that are not compiled: {lacking}"
    import_everything(ours)
    stale = list(uncompiled())
    assert not stale, f"{len(stale)} modules without bytecode, such as {stale[:5]}"
    packages = sorted(found.name for found in importlib.metadata.distributions())
    assert len(packages) <= MAX_PACKAGES, f"{len(packages)} packages: {packages}"
    print(f"{len(packages)} Python packages, {len(sys.modules)} modules imported, all compiled")


if __name__ == "__main__":
    check(sys.argv[1])
