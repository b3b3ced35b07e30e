"""Files of strangers: what is longer, larger or deeper than any model's is refused in words, and at once."""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import pytest

from wisp_plan.checkpoint import index
from wisp_plan.checkpoint.directory import read_config, read_directory
from wisp_plan.checkpoint.index import INDEX_FILE, MAX_FILES, MAX_INDEX_BYTES, read_headers
from wisp_plan.errors import (
    CheckpointInvalid,
    CheckpointMissing,
    ConfigDamaged,
    ConfigInvalid,
    ConfigMissing,
    HeaderInvalid,
    PlanError,
)
from wisp_plan.families.config import parse_config, parse_config_text
from wisp_plan.families.config_files import MAX_CONFIG_BYTES
from wisp_plan.families.reader import MAX_VALUES
from wisp_plan.json_object import MAX_JSON_VALUES, parse_object
from wisp_plan.presets import shape_config

AT_ONCE_S = 5.0  # of CPU time, on a loaded machine; most refusals take milliseconds
HUGE = 10**12


def seconds_of(work: Any) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


OF_OTHERS = {
    "qwen3.5-9b": ("linear_",),
    "nemotron-3-nano-30b-a3b": ("moe_shared_", "moe_latent", "mamba_num_heads", "mamba_head_dim"),
    "nemotron-nano-9b-v2": ("ssm_state_size", "n_groups", "conv_kernel"),
    "falcon-h1-0.5b": ("mamba_d_ssm",),
    "granite-4.0-h-tiny": ("mamba_", "shared_intermediate"),
    "glm-4.5-air": ("n_shared_experts",),
    "qwen3.6-35b-a3b": ("shared_expert",),
    "qwen3-30b-a3b": ("moe_",),
}
"""Models with keys that Llama has not, by what these begin with."""


@pytest.mark.parametrize("key", sorted(MAX_VALUES))
@pytest.mark.parametrize("excess", [1, HUGE, 10**400])
def test_a_dimension_beyond_any_models_is_refused_with_the_possible_one(config_of, key, excess):
    config = shape_config(next((name for name, of in OF_OTHERS.items() if key.startswith(of)), "llama-3-8b"))
    if key == "original_max_position_embeddings":
        config = config_of("llama-3.1-8b")
        config["rope_scaling"] = {**config["rope_scaling"], key: MAX_VALUES[key] + excess}
    else:
        config[key] = MAX_VALUES[key] + excess
    with pytest.raises(ConfigInvalid, match=f"at most {MAX_VALUES[key]}") as caught:
        parse_config(config)
    assert caught.value.key.endswith(key)
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("value", [-1, 0, -HUGE, 1.5, 1e300, float("inf"), float("nan"), "2", True, [2], {}])
@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "vocab_size", "hidden_size"])
def test_a_dimension_that_is_no_count_is_refused(config_of, key, value):
    with pytest.raises(ConfigInvalid, match=key):
        parse_config(config_of("llama-3-8b", **{key: value}))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"eos_token_id": list(range(100_000))}, "eos_token_id"),
        ({"eos_token_id": 10**100}, "eos_token_id"),
        ({"bos_token_id": [-1]}, "bos_token_id"),
        ({"hidden_size": 1 << 17, "num_attention_heads": 1, "num_key_value_heads": 1}, "head_dim"),
        ({"architectures": ["x" * 500_000]}, "architectures"),
        ({"architectures": ["evil\n2026-01-01 INFO all is well \ud800"]}, "architectures"),
        ({"hidden_act": "y" * 500_000}, "hidden_act"),
        ({"quantization_config": {"quant_method": "z" * 500_000}}, "quantization_config.quant_method"),
        ({"rope_scaling": {"type": "w" * 500_000}}, "rope_scaling.type"),
    ],
)
def test_a_refusal_is_one_short_printable_line_whatever_the_file_says(config_of, changes, key):
    config = {**config_of("llama-3-8b"), **changes}
    if "head_dim" not in changes:
        config.pop("head_dim", None)
    with pytest.raises(ConfigInvalid) as caught:
        parse_config(config)
    assert caught.value.key == key
    assert len(caught.value.message) < 500
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":[' + b"[]," * 3_000_000 + b"[]]}",  # 9 MB: 6.7 s and 261 MiB of the operator's, once
        b'{"a":[' + b"[]," * 300_000 + b"[]]}",  # within the bytes, beyond the values
        b'{"a":' + b'{"":' * 200_000 + b"1" + b"}" * 200_001,
        b"[" * (MAX_CONFIG_BYTES - 1),
        b'{"num_hidden_layers": 1' + b"0" * 100_000 + b"}",
        b'{"a":"' + b"\\u0041" * 1_000_000 + b'"}',
        b'{"a":1e999999}',
        b"\xff" * 1000,
    ],
)
def test_a_config_that_is_no_models_is_refused_at_once(tmp_path, text):
    (tmp_path / "config.json").write_bytes(text)

    def refused() -> None:
        with pytest.raises(ConfigInvalid) as caught:
            read_config(tmp_path)
        assert caught.value.message.startswith(f"{tmp_path}/config.json")
        assert len(caught.value.message) < 1000

    assert seconds_of(refused) < AT_ONCE_S


def test_an_endless_config_is_read_as_far_as_the_limit(tmp_path):
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(1 << 40)  # sparse: a terabyte that takes no space
    with pytest.raises(ConfigDamaged, match=f"more than {MAX_CONFIG_BYTES} bytes"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", INDEX_FILE])
@pytest.mark.parametrize("kind", ["fifo", "zero"])
def test_what_is_no_regular_file_is_never_waited_for(tmp_path, config_of, name, kind):
    (tmp_path / "config.json").write_text(json.dumps(config_of("qwen3-0.6b")))
    (tmp_path / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / name) if kind == "fifo" else (tmp_path / name).symlink_to("/dev/zero")
    failures: list[Exception] = []

    def read() -> None:
        try:
            read_config(tmp_path)
            read_directory(tmp_path)
        except PlanError as error:
            failures.append(error)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(10)
    assert not reader.is_alive()
    assert isinstance(failures[0], ConfigMissing | CheckpointMissing)


def header(tensors: dict[str, Any]) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


def source_of(data: bytes) -> index.Source:
    return index.Source(lambda offset, length: data[offset : offset + length], len(data))


def tensor(shape: object, offsets: object = (0, 0), dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "tensors",
    [
        {"a": tensor([(1 << 62) - 1] * 16, [0, 8])},
        {"a": tensor([1 << 63], [0, 8])},
        {"a": tensor([10**400], [0, 8])},
        {"a": tensor([-1], [0, 8])},
        {"a": tensor([2.0], [0, 8])},
        {"a": tensor(["2"], [0, 8])},
        {"a": tensor([2], [0, 10**30])},
        {"a": tensor([2], [0, 1e400])},
        {"a": tensor([1] * 1000, [0, 4])},
        {"a" * 5000: tensor([2], [0, 8])},
        {f"t{number}": tensor([0]) for number in range(140_000)},
    ],
    ids=range(11),
)
def test_a_header_that_no_file_has_is_refused_at_once(tensors):
    data = header(tensors)

    def refused() -> None:
        with pytest.raises(CheckpointInvalid) as caught:
            read_headers([("model.safetensors", source_of(data))])
        assert len(caught.value.message) < 1000
        assert caught.value.message.isprintable()

    assert seconds_of(refused) < AT_ONCE_S


def test_the_headers_of_all_files_together_are_bounded(monkeypatch):
    monkeypatch.setattr(index, "MAX_TENSORS", 100)
    data = header({f"t{number}": tensor([0]) for number in range(30)})
    sources = [(f"{number}.safetensors", source_of(data)) for number in range(50)]
    with pytest.raises(HeaderInvalid, match=r"up to 3\.safetensors have 120 tensors"):
        read_headers(sources)
    monkeypatch.setattr(index, "MAX_TENSORS", 1 << 20)
    monkeypatch.setattr(index, "MAX_HEADERS_BYTES", 3 * len(data))
    with pytest.raises(HeaderInvalid, match=r"up to 3\.safetensors"):
        read_headers(sources)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b" " * (MAX_INDEX_BYTES + 1), "more than"),
        (b'{"weight_map":[' + b"[]," * MAX_JSON_VALUES + b"[]]}", "values"),
        (
            json.dumps({"weight_map": {f"t{i}": f"{i}.safetensors" for i in range(MAX_FILES + 1)}}).encode(),
            "names",
        ),
        (json.dumps({"weight_map": {"a": "x" * 300 + ".safetensors"}}).encode(), "in the same folder"),
        (json.dumps({"weight_map": {"a": "x\n.safetensors"}}).encode(), "in the same folder"),
        (json.dumps({"weight_map": {"a": "x\0.safetensors"}}).encode(), "in the same folder"),
    ],
    ids=["bytes", "values", "files", "long name", "newline", "zero byte"],
)
def test_an_index_that_no_checkpoint_has_is_refused_at_once(tmp_path, text, said):
    (tmp_path / INDEX_FILE).write_bytes(text)

    def refused() -> None:
        with pytest.raises(HeaderInvalid, match=said):
            read_directory(tmp_path)

    assert seconds_of(refused) < AT_ONCE_S


@pytest.mark.parametrize(
    ("device", "kernels"),
    [("cpu", {}), ("cuda", {"hidden_size": 16384, "vocab_size": 1 << 18})],  # of more no GPU has kernels
)
def test_the_largest_shape_that_is_allowed_is_planned_within_seconds(config_of, device, kernels):
    """Bounds are only bounds if the work at them is small."""
    from wisp_plan.fit.request import FitRequest
    from wisp_plan.fit.verdict import check

    spec = parse_config(config_of("llama-3-8b", **{**MAX_VALUES, "head_dim": 128, **kernels}))
    request = FitRequest(max_concurrent=1024, device=device)
    assert seconds_of(lambda: check(spec, request, available_bytes=1 << 40, device_name="X")) < 10


def test_bounds_leave_room_for_the_largest_published_models(config_of):
    """Llama 3.1 405B, the largest of the families; DeepSeek's index has 91,991 tensors in 163 files."""
    config = config_of("llama-3.1-8b", num_hidden_layers=126, hidden_size=16384, intermediate_size=53248)
    assert len(parse_config_text(json.dumps(config).encode(), "x").layers) == 126
    names = {f"model.layers.{n // 1500}.mlp.experts.{n}.down_proj.weight": n for n in range(91_991)}
    weight_map = {name: f"model-{n % 163:05}-of-000163.safetensors" for name, n in names.items()}
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}).encode()
    assert len(index.parse_index(text)) == 91_991
    assert parse_object(text, "x")
