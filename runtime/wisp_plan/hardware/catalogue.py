"""Known GPUs by name: memory, compute capability, kernel folder.

Memory is the driver's number (``nvidia-smi``'s total, MiB, ECC as it is set at delivery), which is less than
the data sheet's for cards whose ECC bits are in the same memory.

Sources: https://thundergolfer.com/blog/nvidia-gpu-memory-capacity (T4, L4, A10, L40S, A100, H100, H200); for
the others, ``nvidia-smi`` tables that their owners published, several of each; the A30 follows the A100, of
whose memory the driver reports all. Compute capability: https://developer.nvidia.com/cuda-gpus.
GPU feature discovery's ``nvidia.com/gpu.product`` is the driver's name with ``-`` for each space.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wisp_plan.units import MIB

Capability = tuple[int, int]
_TURING, _AMPERE, _AMPERE_RTX = (7, 5), (8, 0), (8, 6)
_ADA, _HOPPER = (8, 9), (9, 0)
_BLACKWELL, _BLACKWELL_ULTRA, _BLACKWELL_RTX = (10, 0), (10, 3), (12, 0)


Support = Literal["runs", "untried", "refused"]

TRIED = ("hopper",)
"""Kernel folders with a card that has run models."""
COMPILED = ("ampere", "ada")
"""Kernel folders compiled for cards that have run no model yet."""
TRIED_CARDS = ("H200",)
"""Cards that have run models, by name."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU model.

    Attributes:
        name: short name, e.g. ``A100-80GB``.
        memory_mib: total memory that the driver reports, in MiB.
        capability: CUDA compute capability, (major, minor).
        hardware: folder under ``kernels/`` with its sources.
        driver_names: names that ``nvidia-smi`` reports.
        aliases: other common spellings.
        is_datacenter: whether it is sold for servers; only such cards are proposed to users.
    """

    name: str
    memory_mib: int
    capability: Capability
    hardware: str
    driver_names: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    is_datacenter: bool = False

    @property
    def memory_bytes(self) -> int:
        """Total memory in bytes."""
        return self.memory_mib * MIB

    @property
    def has_bf16(self) -> bool:
        """Whether its tensor cores multiply bf16, which every kernel needs."""
        return self.capability >= _AMPERE

    @property
    def support(self) -> Support:
        """Whether models run on it, have not been tried on it, or are refused."""
        if self.name in TRIED_CARDS:
            return "runs"
        return "untried" if self.hardware in (*TRIED, *COMPILED) else "refused"


def hardware_of(capability: Capability) -> str:
    """Return the kernel folder of a compute capability: ``hopper`` for (9, 0)."""
    if capability == (8, 9):
        return "ada"
    folders = {7: "turing", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}
    return folders.get(capability[0], f"sm{capability[0]}{capability[1]}")


def _card(
    name: str,
    memory_mib: int,
    capability: Capability,
    *driver_names: str,
    aliases: tuple[str, ...] = (),
    is_datacenter: bool = True,
) -> Card:
    return Card(name, memory_mib, capability, hardware_of(capability), driver_names, aliases, is_datacenter)


def _desktop(name: str, memory_mib: int, capability: Capability, *driver_names: str, alias: str) -> Card:
    return _card(name, memory_mib, capability, *driver_names, aliases=(alias,), is_datacenter=False)


CARDS: tuple[Card, ...] = (
    _card("T4", 15360, _TURING, "Tesla T4", "NVIDIA T4", aliases=("t4-16gb",)),
    _card("L4", 23034, _ADA, "NVIDIA L4", aliases=("l4-24gb",)),
    _card("A10", 23028, _AMPERE_RTX, "NVIDIA A10", aliases=("a10-24gb",)),
    _card("A10G", 23028, _AMPERE_RTX, "NVIDIA A10G", aliases=("a10g-24gb",)),
    _card("A30", 24576, _AMPERE, "NVIDIA A30", aliases=("a30-24gb",)),
    _card("L40S", 46068, _ADA, "NVIDIA L40S", aliases=("l40s-48gb",)),
    _card("L40", 46068, _ADA, "NVIDIA L40", aliases=("l40-48gb",)),
    _card("L20", 46068, _ADA, "NVIDIA L20", aliases=("l20-48gb",)),
    _card("A40", 46068, _AMPERE_RTX, "NVIDIA A40", aliases=("a40-48gb",)),
    _card(
        "A100-40GB",
        40960,
        _AMPERE,
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100-PCIE-40GB",
        "A100-SXM4-40GB",
        "A100-PCIE-40GB",
        aliases=("a100",),  # the smaller of the two that the bare name may mean
    ),
    _card(
        "A100-80GB",
        81920,
        _AMPERE,
        "NVIDIA A100-SXM4-80GB",
        "NVIDIA A100 80GB PCIe",
        "NVIDIA A100-PCIE-80GB",
        "A100-SXM4-80GB",
        "A100 80GB PCIe",
    ),
    _card(
        "H100",
        81559,
        _HOPPER,
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 PCIe",
        aliases=("h100-80gb", "h100-sxm", "h100-sxm5"),
    ),
    _card("H100-NVL", 95830, _HOPPER, "NVIDIA H100 NVL", aliases=("h100-94gb",)),
    _card("H20", 97871, _HOPPER, "NVIDIA H20", aliases=("h20-96gb",)),
    _card("GH200", 97871, _HOPPER, "NVIDIA GH200 480GB", "NVIDIA GH200 120GB", "GH200 120GB", "GH200 480GB"),
    _card("H200", 143771, _HOPPER, "NVIDIA H200", "NVIDIA H200 NVL", aliases=("h200-141gb", "h200-sxm")),
    _card("B200", 183359, _BLACKWELL, "NVIDIA B200", aliases=("b200-180gb", "b200-192gb")),
    _card("GB200", 189471, _BLACKWELL, "NVIDIA GB200"),
    _card("B300", 275040, _BLACKWELL_ULTRA, "NVIDIA B300 SXM6 AC", "NVIDIA B300"),
    _card(
        "RTX-PRO-6000",
        97887,
        _BLACKWELL_RTX,
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        aliases=("rtx-pro-6000-blackwell", "pro6000"),
    ),
    _desktop("RTX-A6000", 49140, _AMPERE_RTX, "NVIDIA RTX A6000", alias="a6000"),
    _desktop("RTX-6000-Ada", 49140, _ADA, "NVIDIA RTX 6000 Ada Generation", alias="6000ada"),
    _desktop("RTX-3090", 24576, _AMPERE_RTX, "NVIDIA GeForce RTX 3090", alias="3090"),
    _desktop("RTX-4090", 24564, _ADA, "NVIDIA GeForce RTX 4090", alias="4090"),
    _desktop("RTX-5090", 32607, _BLACKWELL_RTX, "NVIDIA GeForce RTX 5090", alias="5090"),
)
