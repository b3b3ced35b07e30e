"""GPUs by the names of people, drivers and node labels."""

from __future__ import annotations

from itertools import pairwise

import pytest

from wisp_plan.errors import UnknownCard
from wisp_plan.hardware.catalogue import CARDS, hardware_of
from wisp_plan.hardware.gpus import (
    MAJOR_LABEL,
    MEMORY_LABEL,
    MINOR_LABEL,
    PRODUCT_LABEL,
    card_of_labels,
    describe,
    find_card,
    proposable_cards,
    usable_bytes,
)
from wisp_plan.units import GIB, MIB


@pytest.mark.parametrize(
    ("typed", "card", "memory_mib", "hardware"),
    [
        ("t4", "T4", 15360, "turing"),
        ("l4", "L4", 23034, "ada"),
        ("L40S", "L40S", 46068, "ada"),
        ("l40", "L40", 46068, "ada"),
        ("a10", "A10", 23028, "ampere"),
        ("a10g", "A10G", 23028, "ampere"),
        ("a40", "A40", 46068, "ampere"),
        ("a100", "A100-40GB", 40960, "ampere"),
        ("a100-40gb", "A100-40GB", 40960, "ampere"),
        ("A100 80GB", "A100-80GB", 81920, "ampere"),
        ("h100", "H100", 81559, "hopper"),
        ("H100-80GB", "H100", 81559, "hopper"),
        ("h100_nvl", "H100-NVL", 95830, "hopper"),
        ("h200", "H200", 143771, "hopper"),
        ("gh200", "GH200", 97871, "hopper"),
        ("b200", "B200", 183359, "blackwell"),
        ("rtx4090", "RTX-4090", 24564, "ada"),
        ("4090", "RTX-4090", 24564, "ada"),
        ("RTX 5090", "RTX-5090", 32607, "blackwell"),
        ("rtx 6000 ada", "RTX-6000-Ada", 49140, "ada"),
        ("A6000", "RTX-A6000", 49140, "ampere"),
        # as nvidia-smi and the product label say it
        ("NVIDIA L4", "L4", 23034, "ada"),
        ("Tesla T4", "T4", 15360, "turing"),
        ("NVIDIA-A100-SXM4-40GB", "A100-40GB", 40960, "ampere"),
        ("NVIDIA-A100-80GB-PCIe", "A100-80GB", 81920, "ampere"),
        ("NVIDIA-H100-80GB-HBM3", "H100", 81559, "hopper"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "H100", 81559, "hopper"),  # time slicing
        ("NVIDIA-GH200-480GB", "GH200", 97871, "hopper"),
        ("NVIDIA-GeForce-RTX-4090", "RTX-4090", 24564, "ada"),
        ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "RTX-PRO-6000", 97887, "blackwell"),
    ],
)
def test_a_card_is_found_by_any_of_its_names(typed, card, memory_mib, hardware):
    found = find_card(typed)
    assert (found.name, found.memory_mib, found.hardware) == (card, memory_mib, hardware)


def test_no_two_cards_share_a_name():
    for card in CARDS:
        for name in (card.name, *card.driver_names, *card.aliases):
            assert find_card(name) is card, name


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.name)
def test_a_card_has_less_memory_than_its_name_promises_and_a_known_kernel_folder(card):
    assert 8 * GIB < card.memory_bytes < 300 * GIB
    assert card.memory_mib < 300_000
    assert hardware_of(card.capability) == card.hardware
    assert card.hardware in {"turing", "ampere", "ada", "hopper", "blackwell"}


@pytest.mark.parametrize(
    ("typed", "near"),
    [("h1000", "H100"), ("l4s", "L40S"), ("rtx409", "RTX-4090"), ("a100-60gb", "A100-80GB"), ("??", "L4")],
)
def test_an_unknown_card_is_refused_with_similar_ones(typed, near):
    with pytest.raises(UnknownCard) as caught:
        find_card(typed)
    assert typed in caught.value.message
    assert near in caught.value.message


def labels(product: str, memory: str = "", major: str = "", minor: str = "") -> dict[str, str]:
    pairs = {PRODUCT_LABEL: product, MEMORY_LABEL: memory, MAJOR_LABEL: major, MINOR_LABEL: minor}
    return {key: value for key, value in pairs.items() if value}


@pytest.mark.parametrize(
    ("node", "name", "memory_mib", "hardware"),
    [
        (labels("NVIDIA-L4"), "L4", 23034, "ada"),
        (labels("NVIDIA-L4", "22491"), "L4", 22491, "ada"),  # the node knows better
        (labels("NVIDIA-L4", "lots"), "L4", 23034, "ada"),
        (labels("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "4864"), "A100-40GB MIG 1g.5gb", 4864, "ampere"),
        (
            labels("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED", "9984"),
            "H100 MIG 1g.10gb",
            9984,
            "hopper",
        ),
        (labels("NVIDIA-X9000", "100000", "9", "0"), "NVIDIA-X9000", 100000, "hopper"),
        (labels("NVIDIA-GeForce-RTX-3070", "8192", "8", "6"), "NVIDIA-GeForce-RTX-3070", 8192, "ampere"),
    ],
)
def test_a_node_is_read_by_its_labels(node, name, memory_mib, hardware):
    card = card_of_labels(node)
    assert (card.name, card.memory_mib, card.hardware) == (name, memory_mib, hardware)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ({}, "is '', which is not in the catalogue"),
        (labels("NVIDIA-X9000"), MAJOR_LABEL),
        (labels("NVIDIA-X9000", "100000"), MAJOR_LABEL),
        (
            labels("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"),
            f"also has {MEMORY_LABEL} (MiB)",
        ),  # a slice is not the card
    ],
)
def test_labels_that_do_not_say_enough_are_refused(node, said):
    with pytest.raises(UnknownCard) as caught:
        card_of_labels(node)
    assert said in caught.value.message


def test_cards_are_proposed_that_have_kernels_and_are_sold_for_servers_the_smallest_first():
    names = [card.name for card in proposable_cards()]
    assert names[:3] == ["L4", "A10", "A10G"]  # no T4, which has no kernels, and no desktop card
    assert names[-1] == "H200"  # Blackwell has no kernels either
    memory = [card.memory_bytes for card in proposable_cards()]
    assert all(larger > smaller - GIB for smaller, larger in pairwise(memory))


def test_a_tenth_of_the_usable_memory_stays_free():
    assert usable_bytes(find_card("l4")) == int((23034 - 640) * MIB * 0.9)
    assert usable_bytes(find_card("l4"), 1.0) == (23034 - 640) * MIB


def test_the_drivers_share_is_not_underestimated_on_the_card_it_was_measured_on():
    assert usable_bytes(find_card("h200"), 1.0) <= 143155 * MIB


def test_a_card_is_described_in_one_line():
    assert describe(find_card("l4")) == "L4: 22.5 GiB, ada, compute capability 8.9"


@pytest.mark.parametrize(
    ("capability", "folder"),
    [((7, 5), "turing"), ((8, 0), "ampere"), ((8, 9), "ada"), ((9, 0), "hopper"), ((11, 0), "sm110")],
)
def test_a_compute_capability_has_a_kernel_folder(capability, folder):
    assert hardware_of(capability) == folder
