"""Check that manifests name every kernel, and that each states its launch and compiles for its GPUs."""

import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from wisp_plan.hardware.catalogue import CARDS, COMPILED, TRIED
from wisp_runtime.config import kernels_dir
from wisp_runtime.errors import CompilerMissing
from wisp_runtime.ops.cuda.device import build
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.manifest import PORTABLE, Absent

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "kernels"
SOURCES = sorted(KERNELS.rglob("*.cu"))
BUILT = [path for path in SOURCES if KERNELS / "lab" not in path.parents]
HEADERS = sorted(KERNELS.rglob("*.cuh"))
CATALOGUE = Catalogue(KERNELS)
JOBS = build.plan(CATALOGUE, [], kernels_dir())
NVCC = Path.home() / ".cache" / "wisp" / "nvcc-13.0.88"
KEYS = {"grid", "block", "needs", "check"}
READERS = {  # folders of kernels that read weights
    *("portable/gemm", "portable/quantized"),
    *("hopper/gemm", "hopper/moe", "hopper/persistent", "hopper/quantized"),
}
KERNEL_ENTRY, GLOBAL_FUNCTION, SYMBOL_TABLE = 0x10, 0x12, 2  # cuda_elf.h's STO_CUDA_ENTRY; elf.h


def relative(path):
    return path.relative_to(KERNELS).as_posix()


@pytest.fixture(scope="session")
def nvcc():
    """The compiler; fetched from PyPI once if there is none."""
    wheel = NVCC / "nvidia" / "cu13" / "bin" / "nvcc"
    try:
        return build.find_nvcc(wheel if wheel.is_file() else None)
    except CompilerMissing as error:
        if not (shutil.which("g++") or shutil.which("clang++")):
            pytest.skip(error.message)
    NVCC.parent.mkdir(parents=True, exist_ok=True)
    with open(NVCC.with_name(f".{NVCC.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test runs may fetch it at once
        if not wheel.is_file():
            fetch()
    return build.find_nvcc(wheel)


def fetch():
    partial = NVCC.with_name(f".{NVCC.name}.{os.getpid()}")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--target",
        partial,
    ]
    wheels = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        "kernels"
    ]
    done = subprocess.run([*pip, *wheels], capture_output=True, text=True, timeout=280)
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        pytest.skip(
            f"nvcc's wheels could not be fetched from the package index: {done.stderr.strip()[-200:]}"
        )
    partial.replace(NVCC)


def entries_of(cubin: bytes) -> set[str]:
    """The names of a cubin's kernels, from its ELF symbol table."""
    (at,) = struct.unpack_from("<Q", cubin, 40)
    size, count = struct.unpack_from("<HH", cubin, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", cubin, at + size * i) for i in range(count)]
    names = set()
    for _, kind, _, _, offset, length, link, *_ in sections:
        if kind != SYMBOL_TABLE:
            continue
        for symbol in range(offset, offset + length, 24):
            name, info, other = struct.unpack_from("<IBB", cubin, symbol)
            if info == GLOBAL_FUNCTION and other & KERNEL_ENTRY:
                begin = sections[link][4] + name
                names.add(cubin[begin : cubin.index(b"\0", begin)].decode())
    return names


@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.arch}-{job.source.name.replace(' for ', '-')}")
def test_a_kernel_compiles_for_its_gpus_and_has_the_entries_of_the_manifest(nvcc, job):
    built = build.compile_one(job, nvcc, KERNELS / "include")
    assert built.remarks == "", "nvcc has a remark"
    assert entries_of(job.cubin.read_bytes()) == set(job.source.entries)


@pytest.mark.parametrize("hardware", sorted(CATALOGUE.hardware))
def test_a_manifest_names_each_source_of_its_hardware_and_no_other(hardware):
    manifest = CATALOGUE.manifest(hardware)
    own = [source for entry in manifest.models for source in entry.sources]
    named = [*manifest.sources, *manifest.templates, *own]
    assert {source.path for source in named} == set((KERNELS / hardware).rglob("*.cu"))
    assert all(source.needs and source.entries for source in named)


def test_exactly_the_kernels_that_read_weights_name_the_formats_that_they_read():
    sources = {source for hardware in CATALOGUE.hardware for source in CATALOGUE.sources(hardware)}
    assert {relative(source.path.parent) for source in sources if source.formats} == READERS
    assert all(source.formats for source in sources if relative(source.path.parent) in READERS)


def test_every_constant_is_used_by_a_kernel_of_its_hardware_and_no_other_hardware_redefines_it():
    text = {path: path.read_text() for path in (*SOURCES, *HEADERS)}
    portable = CATALOGUE.manifest(PORTABLE).constants
    for hardware in CATALOGUE.hardware:
        own = CATALOGUE.manifest(hardware).constants
        assert hardware == PORTABLE or not own.keys() & portable.keys()
        unused = {name for name in own if not any(f"WISP_{name.upper()}" in code for code in text.values())}
        assert unused == set()


def test_no_folder_holds_more_than_fifteen_files_of_code():
    folders = [path.parent for path in (*SOURCES, *HEADERS)]
    assert {relative(folder) for folder in folders if folders.count(folder) > 15} == set()


def test_an_absent_op_has_a_reason_that_names_the_alternative():
    lacking = [
        chosen
        for hardware in CATALOGUE.hardware
        if hardware != PORTABLE
        for model, weight_format in CATALOGUE.sets(hardware)
        for chosen in CATALOGUE.resolve(hardware, weight_format, model).values()
        if isinstance(chosen, Absent)
    ]
    assert [absent for absent in lacking if "Use " not in absent.why or not absent.why.endswith(".")] == []


def test_hopper_lacks_nothing():
    ops = CATALOGUE.resolve("hopper")
    assert {op for op, chosen in ops.items() if isinstance(chosen, Absent)} == set()
    templates = {source.op for source in CATALOGUE.templates("hopper", "bf16", {})}
    several = {path.stem for path in BUILT if path.parent.name == "quantized"}  # a file a format, not an op
    assert ops.keys() | templates | several >= {path.stem for path in BUILT}


@pytest.mark.parametrize("path", [*SOURCES, *HEADERS], ids=relative)
def test_a_file_begins_with_its_name_and_what_it_is(path):
    first = path.read_text().partition("\n")[0]
    assert re.fullmatch(rf"// {re.escape(path.name)}: \S.{{10,}}[.;:,]?", first), first


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_a_kernels_header_says_its_launch_its_needs_and_its_check(path):
    header = re.match(r"(//.*\n)*", path.read_text())[0]
    assert set(re.findall(r"(\w+) *: ", header)) >= KEYS
    where = "gpu" if path in BUILT else "(?:gpu|emulator)"  # of an experiment, before it has met a GPU
    check = re.search(rf"^//\s+check *: (tests/{where}/(?:\w+/)*test_\w+\.py)\b", header, re.M)
    assert check, "the check line names no test"
    assert (ROOT / check[1]).is_file(), f"{check[1]} is not there"
    assert not re.search(r"^//.*\S (math|grid|needs|check) *: ", header, re.M), "a key within a line"


def test_files_that_comments_of_kernels_name_are_there():
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = [f"/{path}" for path in listing.stdout.splitlines()]
    named = {
        (relative(path), name)
        for path in (*SOURCES, *HEADERS)
        for comment in re.findall(r"//.*", path.read_text())
        for name in re.findall(r"(?<![\w./<-])(?:\w+/)+\w+\.(?:py|cuh?|toml|md)\b", comment)
    }
    lost = {(path, name) for path, name in named if not any(file.endswith(f"/{name}") for file in tracked)}
    assert lost == set()


def test_hardware_and_plan_know_the_same_cards():
    planned = {
        card.name: (card.hardware, card.capability) for card in CARDS if card.hardware in CATALOGUE.hardware
    }
    folders = {name: hardware.name for hardware in CATALOGUE.hardware.values() for name in hardware.sms}
    assert folders == {name: hardware for name, (hardware, _) in planned.items()}
    assert [
        name for name, (hardware, capability) in planned.items() if served_by(capability) != hardware
    ] == []


def test_the_plan_knows_which_hardware_has_kernels():
    assert {*TRIED, *COMPILED} == CATALOGUE.hardware.keys() - {PORTABLE}


def served_by(capability):
    return CATALOGUE.find(capability)[0].name


def test_the_images_stage_that_compiles_has_all_that_compiling_needs(tmp_path):
    stage = re.search(r"^FROM \S+ AS kernels\n(.*?)^FROM ", (ROOT / "Dockerfile").read_text(), re.M | re.S)[1]
    for sources, target in re.findall(r"^COPY ((?:runtime/\S+ )+)(runtime/\S+)$", stage, re.M):
        (tmp_path / target).mkdir(parents=True, exist_ok=True)
        for source in sources.split():
            shutil.copy(ROOT / source, tmp_path / target)
    (tmp_path / "kernels").symlink_to(KERNELS)
    program = "from wisp_runtime.cli.main import main; main()"
    command = [sys.executable, "-c", program, "kernels", "build", "--out", tmp_path, "--nvcc", "/no/nvcc"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "runtime"), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "CompilerMissing: /no/nvcc is not there" in done.stderr
