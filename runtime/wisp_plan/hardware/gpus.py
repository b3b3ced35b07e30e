"""Look up a GPU by the name that people, drivers and Kubernetes node labels use.

The data, with its sources, is :mod:`.catalogue`. Pure: no driver is queried.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import replace

from wisp_plan.errors import UnknownCard
from wisp_plan.hardware.catalogue import CARDS, Card, hardware_of
from wisp_plan.hardware.kernel_formats import kernel_formats
from wisp_plan.units import GIB, MIB, format_size

PRODUCT_LABEL = "nvidia.com/gpu.product"
MEMORY_LABEL = "nvidia.com/gpu.memory"
MAJOR_LABEL, MINOR_LABEL = "nvidia.com/gpu.compute.major", "nvidia.com/gpu.compute.minor"
DEFAULT_FRACTION = 0.9
"""Share of a card's memory that a model may use: the default of ``--memory-fraction``."""

DRIVER_BYTES = 640 * MIB
"""Memory that the driver reserves: on an H200, CUDA reports 143155 of ``nvidia-smi``'s 143771 MiB."""

_VENDOR = re.compile(r"^(nvidia|tesla|quadro|geforce)+")
_SLICE = re.compile(r"-MIG-[0-9a-z.+]+$", re.IGNORECASE)
_SHARED = re.compile(r"-SHARED$", re.IGNORECASE)


def find_card(name: str) -> Card:
    """Find a card by any of its names; case, vendor and punctuation do not matter.

    Args:
        name: e.g. ``l4``, ``A100-80GB``, ``rtx4090``, ``NVIDIA H100 80GB HBM3``, ``Tesla-T4``.

    Raises:
        UnknownCard: no such card; the message lists those with similar names.
    """
    card = _BY_KEY.get(_key(_SHARED.sub("", name)))
    if card is None:
        raise UnknownCard(f"no GPU '{name[:60]}' is known. {_suggestion(name)}")
    return card


def card_of_labels(labels: Mapping[str, str]) -> Card:
    """Read the card of a Kubernetes node from the labels of GPU feature discovery.

    The node's own numbers outrank the catalogue's, so that a MIG slice has its own memory and a card that
    is not in the catalogue is usable.

    Raises:
        UnknownCard: the labels are not sufficient.
    """
    product = labels.get(PRODUCT_LABEL, "")
    memory_mib, capability = _memory_mib(labels), _capability(labels)
    known = _BY_KEY.get(_key(_SLICE.sub("", _SHARED.sub("", product))))
    is_slice = _SLICE.search(_SHARED.sub("", product)) is not None
    if known is not None and (memory_mib or not is_slice):
        name = f"{known.name} MIG {_slice_name(product)}" if is_slice else known.name
        return replace(known, name=name, memory_mib=memory_mib or known.memory_mib)
    if product and memory_mib and capability:
        return Card(product, memory_mib, capability, hardware_of(capability))
    lacking = f"{MEMORY_LABEL} (MiB)" if is_slice else f"{MEMORY_LABEL}, {MAJOR_LABEL} and {MINOR_LABEL}"
    raise UnknownCard(
        f"the node's label {PRODUCT_LABEL} is '{product}', which is not in the catalogue. "
        f"Install GPU feature discovery so that the node also has {lacking}."
    )


def usable_bytes(card: Card, fraction: float = DEFAULT_FRACTION) -> int:
    """Return the bytes of an otherwise idle card that a model may use, CUDA's context included."""
    return int((card.memory_bytes - DRIVER_BYTES) * fraction)


def proposable_cards() -> list[Card]:
    """List data-centre cards with kernels, the smallest first; of about equal ones as in the catalogue."""
    cards = (card for card in CARDS if card.is_datacenter and kernel_formats(card.hardware))
    return sorted(cards, key=lambda card: round(card.memory_bytes / GIB))


def _key(name: str) -> str:
    return _VENDOR.sub("", re.sub(r"[^a-z0-9]", "", name.lower()))


def _slice_name(product: str) -> str:
    return _SHARED.sub("", product).upper().partition("-MIG-")[2].lower()


def _memory_mib(labels: Mapping[str, str]) -> int:
    text = labels.get(MEMORY_LABEL, "")
    return int(text) if re.fullmatch(r"\d{1,9}", text) else 0


def _capability(labels: Mapping[str, str]) -> tuple[int, int] | None:
    major, minor = labels.get(MAJOR_LABEL, ""), labels.get(MINOR_LABEL, "0")
    if re.fullmatch(r"\d{1,3}", major) and re.fullmatch(r"\d{1,3}", minor):
        return int(major), int(minor)
    return None


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(_key(name), _BY_KEY, n=6, cutoff=0.5)
    names = dict.fromkeys(_BY_KEY[key].name for key in near)
    if names:
        return f"Did you mean {' or '.join(names)}?"
    return f"Known are {', '.join(card.name for card in CARDS)}."


def describe(card: Card) -> str:
    """Describe a card in one line: ``L4: 22.5 GiB, ada, compute capability 8.9``."""
    major, minor = card.capability
    memory = format_size(card.memory_bytes)
    return f"{card.name}: {memory}, {card.hardware}, compute capability {major}.{minor}"


def _index() -> dict[str, Card]:
    """Map each normalised name to its card; names are unique (tests/plan/hardware/test_gpus.py)."""
    return {_key(name): card for card in CARDS for name in (card.name, *card.driver_names, *card.aliases)}


_BY_KEY = _index()
"""Cards by their normalised names."""
