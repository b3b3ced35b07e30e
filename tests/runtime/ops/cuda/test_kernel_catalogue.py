"""Which source serves which op on which GPU, and what names its cubin."""

import pytest

from wisp_runtime.errors import KernelsMissing
from wisp_runtime.ops.cuda.device import listing
from wisp_runtime.ops.cuda.device.catalogue import Absent, Catalogue, Source, digest

HARDWARE = """
[architectures.sm_90a]
capabilities = ["9.0"]
shared_bytes = 232448
"""


def manifest(*ops, **absent):
    made = "".join(f'[ops.{op}]\nentries = ["{op}"]\nneeds = "D % 8 == 0"\n' for op in ops)
    return made + "[absent]\n" + "".join(f'{op} = "{why}"\n' for op, why in absent.items())


@pytest.fixture
def kernels(tmp_path):
    """Write a tree: ``kernels({leaf: manifest})``; each op gets a source."""

    def write(leaves):
        for folder in ("portable", "hopper"):
            (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / "include").mkdir(exist_ok=True)
        (tmp_path / "include" / "deep.cuh").write_text("// deep\n")
        (tmp_path / "include" / "shared.cuh").write_text('#include "deep.cuh"\n#include <cuda_bf16.h>\n')
        (tmp_path / "portable" / "hardware.toml").write_text("[architectures]\n")
        (tmp_path / "hopper" / "hardware.toml").write_text(HARDWARE)
        for leaf, text in leaves.items():
            (tmp_path / leaf).mkdir(parents=True)
            (tmp_path / leaf / "manifest.toml").write_text(text)
        catalogue = Catalogue(tmp_path)
        for leaf in leaves:
            for op, found in catalogue.manifest(leaf).items():
                if isinstance(found, Source):
                    found.path.write_text(f'#include "shared.cuh"\n// {op}\n')
        return catalogue

    return write


OWN, HOPPER, PORTABLE = "hopper/llama/bf16", "hopper/common/bf16", "portable/common/bf16"


@pytest.mark.parametrize(
    ("leaves", "model", "expect"),
    [
        ({PORTABLE: manifest("norm")}, "common", PORTABLE),
        ({PORTABLE: manifest("norm"), HOPPER: manifest("norm")}, "common", HOPPER),
        ({PORTABLE: manifest("norm"), HOPPER: manifest("norm"), OWN: manifest("norm")}, "llama", OWN),
        ({HOPPER: manifest("norm"), OWN: manifest("norm")}, "qwen3", HOPPER),  # another family's is not ours
        ({PORTABLE: manifest("norm"), "hopper/common/fp8": manifest("norm")}, "common", PORTABLE),
        ({PORTABLE: manifest("norm"), HOPPER: manifest(norm="slow.")}, "common", PORTABLE),  # somebody has it
        ({PORTABLE: manifest("norm"), "ada/common/bf16": manifest("norm")}, "common", PORTABLE),
    ],
)
def test_the_nearest_leaf_that_has_an_op_serves_it(kernels, leaves, model, expect):
    chosen = kernels(leaves).resolve("hopper", model=model)["norm"]
    assert isinstance(chosen, Source)
    assert chosen.leaf == expect


@pytest.mark.parametrize(
    ("leaves", "why"),
    [
        (
            {HOPPER: manifest(norm="no tensor cores."), PORTABLE: manifest(norm="each its own.")},
            "no tensor cores.",
        ),
        ({PORTABLE: manifest(norm="each its own.")}, "each its own."),
        ({"ada/common/bf16": manifest("norm")}, "nobody has written it for hopper."),
    ],
)
def test_what_nobody_has_is_absent_with_the_nearest_reason(kernels, leaves, why):
    chosen = kernels(leaves).resolve("hopper")["norm"]
    assert isinstance(chosen, Absent)
    assert chosen.why == why


def test_a_compute_capability_has_one_architecture_or_a_list_of_those_that_have(kernels):
    catalogue = kernels({})
    hardware, arch = catalogue.find((9, 0))
    assert (hardware.name, arch, hardware.architectures[arch].shared_bytes) == ("hopper", "sm_90a", 232448)
    with pytest.raises(KernelsMissing, match=r"capability 7\.5; there are for 9\.0 \(hopper\)"):
        catalogue.find((7, 5))


@pytest.mark.parametrize(
    "changed", ["portable/common/bf16/norm.cu", "include/shared.cuh", "include/deep.cuh"]
)
def test_a_cubins_name_changes_with_all_that_goes_into_it(kernels, changed):
    catalogue = kernels({PORTABLE: manifest("norm")})
    source = catalogue.resolve("hopper")["norm"]
    before = catalogue.cubin_name(source, "sm_90a")
    assert before == catalogue.cubin_name(source, "sm_90a")
    assert before.startswith("norm-sm_90a-")
    path = catalogue.root / changed
    path.write_text(path.read_text() + "int x;\n")
    assert catalogue.cubin_name(source, "sm_90a") != before


def test_a_cubins_name_ignores_what_does_not_go_into_it(kernels):
    catalogue = kernels({PORTABLE: manifest("norm", "other")})
    source = catalogue.resolve("hopper")["norm"].path
    before = digest(source, catalogue.root / "include", "sm_90a")
    source.with_name("other.cu").write_text("int x;\n")
    (catalogue.root / "include" / "unused.cuh").write_text("int x;\n")
    assert digest(source, catalogue.root / "include", "sm_90a") == before
    assert digest(source, catalogue.root / "include", "sm_80") != before


def test_headers_that_include_each_other_are_read_once(kernels):
    catalogue = kernels({PORTABLE: manifest("norm")})
    (catalogue.root / "include" / "deep.cuh").write_text('#include "shared.cuh"\n')
    assert catalogue.cubin_name(catalogue.resolve("hopper")["norm"], "sm_90a")


def test_a_listing_has_a_row_an_op_and_says_what_is_compiled(kernels, tmp_path):
    catalogue = kernels({PORTABLE: manifest("norm", "rope", linear="each its own.")})
    name = catalogue.cubin_name(catalogue.resolve("hopper")["norm"], "sm_90a")
    (tmp_path / name).touch()
    rows = {row["op"]: row for row in listing.rows(catalogue, [], tmp_path)}
    assert list(rows) == ["linear", "norm", "rope"]
    assert (rows["linear"]["source"], rows["linear"]["why"]) == (None, "each its own.")
    assert (rows["norm"]["isBuilt"], rows["rope"]["isBuilt"]) == (True, False)
    assert (rows["norm"]["arch"], rows["norm"]["hardware"]) == ("sm_90a", "hopper")
    with pytest.raises(KernelsMissing, match="nothing is compiled for sm_75; there are sm_90a"):
        listing.rows(catalogue, ["sm_75"], tmp_path)
