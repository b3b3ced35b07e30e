"""Choose the kernel source of each op, and name its cubin by all that goes into it."""

import pytest

from wisp_runtime.errors import KernelsMissing
from wisp_runtime.ops.cuda.device import listing
from wisp_runtime.ops.cuda.device.catalogue import Catalogue, digest
from wisp_runtime.ops.cuda.device.manifest import Absent, Source, constants, read_manifest

HARDWARE = """
[architectures.sm_90a]
capabilities = ["9.0"]
shared_bytes = 232448
"""


def manifest(*ops, formats=None, **absent):
    reads = f"formats = {formats}\n" if formats else ""
    made = "".join(f'[ops.dense.{op}]\nentries = ["{op}"]\nneeds = "D % 8 == 0"\n{reads}' for op in ops)
    return made + "[absent]\n" + "".join(f'{op} = "{why}"\n' for op, why in absent.items())


def model(*ops, formats=("bf16",)):
    return f"formats = {list(formats)}\n{manifest(*ops)}[model]\nhidden = 64\n"


TEMPLATE = '[templates.persistent.step]\nformats = ["bf16", "fp8"]\nentries = ["step_n8"]\nneeds = "B <= 8"\n'


@pytest.fixture
def kernels(tmp_path):
    """Write a tree: ``kernels({path: text})``; each op gets a source."""

    def write(manifests):
        for folder in ("portable", "hopper", "include"):
            (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / "include" / "deep.cuh").write_text("// deep\n")
        (tmp_path / "include" / "shared.cuh").write_text('#include "deep.cuh"\n#include <cuda_bf16.h>\n')
        (tmp_path / "portable" / "hardware.toml").write_text("[architectures]\n")
        (tmp_path / "hopper" / "hardware.toml").write_text(HARDWARE)
        for path, text in manifests.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        catalogue = Catalogue(tmp_path)
        for hardware in ("portable", "hopper"):
            manifest_of = catalogue.manifest(hardware)
            own = (source for entry in manifest_of.models for source in entry.sources)
            for source in (*manifest_of.sources, *manifest_of.templates, *own):
                source.path.parent.mkdir(parents=True, exist_ok=True)
                source.path.write_text(f'#include "shared.cuh"\n// {source.op}\n')
        return catalogue

    return write


PORTABLE, HOPPER, ADA = (f"{name}/manifest.toml" for name in ("portable", "hopper", "ada"))
LLAMA = "hopper/models/llama.toml"


@pytest.mark.parametrize(
    ("manifests", "model", "expect"),
    [
        ({PORTABLE: manifest("norm")}, "common", "portable/dense/norm"),
        ({PORTABLE: manifest("norm"), HOPPER: manifest("norm")}, "common", "hopper/dense/norm"),
        ({HOPPER: manifest("norm"), LLAMA: model("norm")}, "llama", "hopper/dense/norm for llama"),
        ({HOPPER: manifest("norm"), LLAMA: model("norm")}, "qwen3", "hopper/dense/norm"),  # another model's
        ({PORTABLE: manifest("norm"), HOPPER: manifest(norm="slow.")}, "common", "portable/dense/norm"),
        ({PORTABLE: manifest("norm"), ADA: manifest("norm")}, "common", "portable/dense/norm"),
        ({PORTABLE: manifest("norm", formats=["fp8", "bf16"])}, "common", "portable/dense/norm"),
        # the nearest that reads the format, not the nearest
        (
            {PORTABLE: manifest("norm", formats=["bf16"]), HOPPER: manifest("norm", formats=["fp8"])},
            "common",
            "portable/dense/norm",
        ),
    ],
)
def test_the_nearest_source_that_reads_the_format_serves_an_op(kernels, manifests, model, expect):
    chosen = kernels(manifests).resolve("hopper", "bf16", model)["norm"]
    assert isinstance(chosen, Source)
    assert chosen.name == expect


def test_a_model_of_another_format_has_the_same_kernels_where_no_weights_are_read(kernels):
    text = manifest("norm") + '[ops.gemm.linear]\nentries = ["linear"]\nneeds = ""\nformats = ["bf16"]\n'
    fp8 = '[ops.gemm.linear_fp8]\nops = ["linear"]\nentries = ["linear_fp8"]\nneeds = ""\nformats = ["fp8"]\n'
    catalogue = kernels({PORTABLE: text, HOPPER: fp8})
    bf16, fp8 = (catalogue.resolve("hopper", name) for name in ("bf16", "fp8"))
    assert bf16["norm"] == fp8["norm"]
    assert [chosen["linear"].path.stem for chosen in (bf16, fp8)] == ["linear", "linear_fp8"]
    assert catalogue.sets("hopper") == [("common", "bf16"), ("common", "fp8")]


def test_a_template_is_compiled_for_each_model_and_format_that_both_name(kernels):
    catalogue = kernels({HOPPER: TEMPLATE, LLAMA: model(), "hopper/models/qwen.toml": model(formats=["fp8"])})
    listed = {
        (name, weight_format): catalogue.resolve("hopper", weight_format, name).get("step")
        for name, weight_format in [("llama", "bf16"), ("llama", "fp8"), ("qwen", "fp8"), ("common", "bf16")]
    }
    llama, qwen = listed["llama", "bf16"], listed["qwen", "fp8"]
    assert (llama.formats, llama.defines) == (("bf16",), ("-DWISP_HIDDEN=64",))
    assert (qwen.formats, qwen.name) == (("fp8",), "hopper/persistent/step for qwen")
    assert isinstance(listed["llama", "fp8"], Absent)
    assert listed["common", "bf16"] is None  # a template serves no model that is not named


@pytest.mark.parametrize(
    ("manifests", "why"),
    [
        (
            {HOPPER: manifest(norm="no tensor cores."), PORTABLE: manifest(norm="each its own.")},
            "no tensor cores.",
        ),
        ({PORTABLE: manifest(norm="each its own.")}, "each its own."),
        ({ADA: manifest("norm"), "ada/hardware.toml": "[architectures]\n"}, "it is not written for hopper."),
        (
            {PORTABLE: manifest("norm", formats=["fp8"]), HOPPER: manifest(norm="no tensor cores.")},
            "it reads no bf16 weights; available: fp8. Use one of these (spec.runtime.quantization), or "
            "write a kernel that reads bf16 (see kernels/README.md).",
        ),
    ],
)
def test_an_op_without_a_source_is_absent_with_the_nearest_reason(kernels, manifests, why):
    chosen = kernels(manifests).resolve("hopper")["norm"]
    assert isinstance(chosen, Absent)
    assert chosen.why == why


def test_a_compute_capability_has_one_architecture_or_a_list_of_those_that_have(kernels):
    catalogue = kernels({})
    hardware, arch = catalogue.find((9, 0))
    assert (hardware.name, arch, hardware.architectures[arch].shared_bytes) == ("hopper", "sm_90a", 232448)
    with pytest.raises(KernelsMissing, match=r"capability 7\.5; there are for 9\.0 \(hopper\)"):
        catalogue.find((7, 5))


@pytest.mark.parametrize("changed", ["portable/dense/norm.cu", "include/shared.cuh", "include/deep.cuh"])
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


def test_constants_are_macros_and_rename_the_cubins_of_those_who_use_them_alone(kernels):
    def names(threads):
        read_manifest.cache_clear()
        catalogue = kernels(
            {PORTABLE: f"[constants]\nnorm_threads = {threads}\n" + manifest("norm", "other")}
        )
        assert constants("hopper", catalogue.root) == {"norm_threads": threads}
        (catalogue.root / "portable/dense/norm.cu").write_text(
            "constexpr int kThreads = WISP_NORM_THREADS;\n"
        )
        sources = catalogue.resolve("hopper")
        assert sources["norm"].defines == (f"-DWISP_NORM_THREADS={threads}",)
        return [catalogue.cubin_name(sources[op], "sm_90a") for op in ("norm", "other")]

    (norm, other), (changed, unchanged) = names(256), names(512)
    assert (norm != changed, other == unchanged) == (True, True)


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
