"""List the kernels of each GPU as rows: ``wisp-runtime kernels list``, which ``wisp doctor`` reads too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wisp_runtime.ops.cuda.device.catalogue import Catalogue, require_known
from wisp_runtime.ops.cuda.device.manifest import EVERY_MODEL, Absent, Source


def rows(catalogue: Catalogue, architectures: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Return a row for each op of the kernels for every model, and for each kernel of one model alone.

    Of a weight format other than bf16 there are the ops that read it; all others are bf16's.

    Args:
        catalogue: the kernel folders.
        architectures: architectures to list; all if there are none.
        folder: folder of the cubins.

    Raises:
        KernelsMissing: there is no such architecture.
    """
    require_known(catalogue, architectures)
    known = catalogue.architectures()
    return [
        {
            "arch": arch,
            "hardware": known[arch].name,
            "model": model,
            "quantization": weight_format,
            "op": op,
            **_facts(catalogue, chosen, arch, folder),
        }
        for arch in architectures or known
        for model, weight_format in catalogue.sets(known[arch].name)
        for op, chosen in catalogue.resolve(known[arch].name, weight_format, model).items()
        if _is_own(chosen, model, weight_format)
    ]


def _is_own(chosen: Source | Absent, model: str, weight_format: str) -> bool:
    if model == EVERY_MODEL and weight_format == "bf16":
        return True
    return (
        isinstance(chosen, Source)
        and chosen.model == model
        and (model != EVERY_MODEL or bool(chosen.formats))
    )


def _facts(catalogue: Catalogue, chosen: Source | Absent, arch: str, folder: Path) -> dict[str, Any]:
    if isinstance(chosen, Absent):
        return {"source": None, "why": chosen.why}
    name = catalogue.cubin_name(chosen, arch)
    return {
        "source": chosen.path.relative_to(catalogue.root).as_posix(),
        "formats": list(chosen.formats),
        "entries": list(chosen.entries),
        "needs": chosen.needs,
        "cubin": name,
        "isBuilt": (folder / name).is_file(),
    }
