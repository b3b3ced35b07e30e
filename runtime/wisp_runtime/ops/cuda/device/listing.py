"""What the kernel folders offer each GPU, as rows: for ``wisp-runtime kernels list`` and ``/state``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wisp_runtime.ops.cuda.device.catalogue import EVERY_MODEL, Absent, Catalogue, Source, require_known


def rows(catalogue: Catalogue, architectures: Sequence[str], folder: Path) -> list[dict[str, Any]]:
    """Return a row for each op of the kernels that serve every model, and of those of a model its own.

    Args:
        catalogue: of the kernel folders.
        architectures: to list; all if there are none.
        folder: of the cubins.

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
            "quantization": quant,
            "op": op,
            **_facts(catalogue, chosen, arch, folder),
        }
        for arch in architectures or known
        for model, quant in catalogue.sets(known[arch].name)
        for op, chosen in catalogue.resolve(known[arch].name, quant, model).items()
        if model == EVERY_MODEL or (isinstance(chosen, Source) and chosen.leaf.split("/")[1] == model)
    ]


def _facts(catalogue: Catalogue, chosen: Source | Absent, arch: str, folder: Path) -> dict[str, Any]:
    if isinstance(chosen, Absent):
        return {"source": None, "why": chosen.why}
    name = catalogue.cubin_name(chosen, arch)
    return {
        "source": chosen.path.relative_to(catalogue.root).as_posix(),
        "entries": list(chosen.entries),
        "needs": chosen.needs,
        "cubin": name,
        "isBuilt": (folder / name).is_file(),
    }
