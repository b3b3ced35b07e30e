"""The scripts that put vLLM beside Wisp: what is cut out of its libraries, and how both are started."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

PEER = Path(__file__).parents[2] / "bench/peer"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(PEER))


def image(kind: int, arch: int, payload: bytes) -> bytes:
    import pack

    header = bytearray(64)
    pack.ENTRY.pack_into(header, 0, kind, 0, len(header), len(payload))
    pack.ENTRY_ARCH.pack_into(header, pack.ARCH_OFFSET, arch)
    return bytes(header) + payload


def container(*entries: bytes) -> bytes:
    import pack

    content = b"".join(entries)
    return pack.MAGIC + pack.CONTAINER.pack(0, 1, 16, len(content))[4:] + content


def test_a_library_keeps_one_architecture_s_images_at_the_same_length():
    import pack

    own = image(pack.MACHINE_CODE, 90, b"hopper" * 9)
    fat = container(image(pack.MACHINE_CODE, 80, b"ampere" * 50), own, image(1, 90, b"ptx" * 7))
    code = bytearray(b"before" + fat + b"between, with " + pack.MAGIC + b" alone" + container(own) + b"after")
    length = len(code)
    blanked = pack.keep_arch(code)
    assert len(code) == length
    assert blanked == len(fat) - 16 - len(own)
    assert [code[begin:end] for begin, end in pack.containers(code)] == [own, own]
    assert (b"ampere" in code, code.startswith(b"before"), code.endswith(b"after")) == (False, True, True)
    assert pack.keep_arch(code) == 0  # what is kept is a library again


def test_a_container_without_the_architecture_keeps_an_empty_image():
    import pack

    code = bytearray(container(image(1, 80, b"ptx"), image(pack.MACHINE_CODE, 100, b"blackwell" * 5)))
    pack.keep_arch(code)
    ((begin, end),) = pack.containers(code)
    (left,) = pack.images(code, begin, end)
    assert (left.kind, left.arch) == (pack.MACHINE_CODE, 100)
    assert b"blackwell" not in code


@pytest.mark.parametrize(
    ("name", "is_used"),
    [
        ("vllm/_C_stable_libtorch.abi3.so", True),
        ("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", True),
        ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", False),
        ("vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so", True),
        ("vllm/third_party/deep_gemm/_C.cpython-313-x86_64-linux-gnu.so", False),
    ],
)
def test_files_that_a_hopper_gpu_never_loads_are_left_out(name, is_used):
    import pack

    assert pack.is_used(name) == is_used


def test_both_servers_get_the_same_context_and_name():
    import servers

    commands = [
        servers.vllm(Path("m"), Path("w"), 1, name="vllm", flags=["--seed", "1"]),
        servers.wisp(Path("m"), "cuda", 2, Path("k")),
    ]
    assert all({"8192", servers.MODEL} <= {*command.words} for command in commands)
    assert commands[0].words[-2:] == ["--seed", "1"]


def test_a_server_that_ends_is_said_and_not_waited_for(tmp_path, capsys):
    import servers

    words = [sys.executable, "-c", "print('no GPU here'); raise SystemExit(3)"]
    with servers.started(servers.Command("broken", words, {}, "/", 1), tmp_path) as server:
        assert not server.wait_ready(60)
    assert "no GPU here" in capsys.readouterr().out
