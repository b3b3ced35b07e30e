"""Pack vLLM for a Hopper GPU machine without a network: a site folder as one archive of some 50 MB.

    python tests/bench/peer/pack.py WORK ARCHIVE.tar.xz

Downloads the wheels of wheels.txt (CPython 3.12, x86-64) into WORK/wheels, unpacks them into WORK/site
without the parts that a Hopper GPU and 16-bit weights never load, and compresses. Machine code is kept byte
for byte.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ARCH = 90
UNUSED = (  # prefixes of files in the wheels
    "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",  # Hopper runs FlashAttention 3
    "vllm/vllm-rs",  # the Rust front end; `vllm serve` is Python's
    "vllm/_qutlass_C.abi3.so",  # Blackwell, as the next three
    "vllm/third_party/fmha_sm100/",
    "vllm/third_party/tml_fa4/",
    "vllm/kernels/helion/configs/",
    "xgrammar/lib/libxgrammar.a",
    "pycountry/locales/",
    "mistral_common/data/tekken",
)
DEEP_GEMM = "vllm/third_party/deep_gemm/_C.cpython-"  # one module for each Python
GLIBC = "39 35 34 31 28 27 26 24 18 17 12 5"
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in GLIBC.split()]
PLATFORMS += [f"manylinux{year}_x86_64" for year in ("2014", "2010", "1")]

CONTAINER = struct.Struct("<IHHQ")  # magic, version, header's size, size of the entries
MAGIC = b"\x50\xed\x55\xba"
ENTRY = struct.Struct("<HHIQ")  # kind, attributes, header's size, payload's size
ENTRY_ARCH = struct.Struct("<I")
ARCH_OFFSET, MACHINE_CODE = 28, 2


@dataclass(frozen=True)
class Entry:
    """One image of a fat binary: machine code or PTX of one architecture."""

    kind: int
    arch: int
    begin: int
    header_bytes: int
    bytes: int


def download(wheels: Path) -> None:
    """Fetch the listed wheels."""
    wheels.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
        "-d",
        str(wheels),
    ]
    command += ["--python-version", "3.12", "--implementation", "cp"]
    command += [part for abi in ("cp312", "abi3", "none") for part in ("--abi", abi)]
    command += [part for platform in PLATFORMS for part in ("--platform", platform)]
    subprocess.run([*command, "-r", str(HERE / "wheels.txt")], check=True)


def unpack(wheels: Path, site: Path) -> None:
    """Unpack all wheels without the unused files."""
    shutil.rmtree(site, ignore_errors=True)
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site, [name for name in archive.namelist() if is_used(name)])


def is_used(name: str) -> bool:
    """Return whether a file of a wheel is packed."""
    return not name.startswith(UNUSED) and not (name.startswith(DEEP_GEMM) and "-312-" not in name)


def keep_arch(code: bytearray, arch: int = ARCH) -> int:
    """Blank the other architectures' images in all fat binaries of a library; return the blanked bytes.

    A container keeps its address and its first bytes: the images of ``arch``, moved together, and a size that
    says so. The rest is zero and compresses to nothing. A container without ``arch`` keeps one empty foreign
    image.
    """
    blanked = 0
    for begin, end in containers(code):
        entries = list(images(code, begin, end))
        own = [entry for entry in entries if (entry.kind, entry.arch) == (MACHINE_CODE, arch)]
        kept = b"".join(bytes(code[entry.begin : entry.begin + entry.bytes]) for entry in own)
        if not own:
            least = min(entries, key=lambda entry: (entry.kind != MACHINE_CODE, entry.bytes))
            header = bytes(code[least.begin : least.begin + least.header_bytes])
            kept = header + bytes(least.bytes - least.header_bytes)
        code[begin:end] = kept + bytes(end - begin - len(kept))
        struct.pack_into("<Q", code, begin - 8, len(kept))
        blanked += end - begin - len(kept)
    return blanked


def containers(code: bytearray) -> Iterator[tuple[int, int]]:
    """Yield where the entries of each fat binary begin and end."""
    at = code.find(MAGIC)
    while at >= 0:
        _, version, header_bytes, size = CONTAINER.unpack_from(code, at)
        begin, end = at + header_bytes, at + header_bytes + size
        is_container = (version, header_bytes) == (1, CONTAINER.size) and end <= len(code)
        if is_container:
            yield begin, end
        at = code.find(MAGIC, end if is_container else at + 4)


def images(code: bytearray, begin: int, end: int) -> Iterator[Entry]:
    """Yield the images of one fat binary."""
    while begin < end:
        kind, _, header_bytes, payload_bytes = ENTRY.unpack_from(code, begin)
        if not header_bytes:
            return
        (arch,) = ENTRY_ARCH.unpack_from(code, begin + ARCH_OFFSET)
        entry = Entry(kind, arch, begin, header_bytes, header_bytes + payload_bytes)
        yield entry
        begin += entry.bytes


def slim(site: Path) -> None:
    """Keep one architecture in vLLM's libraries, and no debug information in the others."""
    for library in site.rglob("*.so"):
        if "vllm" in library.parts:
            code = bytearray(library.read_bytes())
            if blanked := keep_arch(code):
                library.write_bytes(code)
                print(
                    f"{library.name}: {len(code) / 1e6:.1f} MB, {blanked / 1e6:.1f} MB of them blank",
                    file=sys.stderr,
                )
        else:
            subprocess.run(["strip", "-g", library], check=False)


def compress(site: Path, archive: Path) -> None:
    """Write the archive."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    tar = ["tar", "-C", site.parent, "--sort=name", "--mtime=2000-01-01", "-cf", "-", site.name]
    with archive.open("wb") as out, subprocess.Popen(tar, stdout=subprocess.PIPE) as packed:
        subprocess.run(["xz", "-T0", "-6"], stdin=packed.stdout, stdout=out, check=True)


def main() -> None:
    """Pack."""
    work, archive = Path(sys.argv[1]), Path(sys.argv[2])
    download(work / "wheels")
    unpack(work / "wheels", work / "site")
    slim(work / "site")
    compress(work / "site", archive)
    print(f"{archive}: {archive.stat().st_size / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    main()
