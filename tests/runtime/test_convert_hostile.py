"""GGUF files that lie: counts, lengths, shapes and numbers beyond the file end in a sentence, and at once."""

from __future__ import annotations

import struct
import time
from contextlib import suppress

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import HEADS, TOKENS, write_gguf

from wisp_runtime.convert import gguf_file
from wisp_runtime.convert.gguf import convert
from wisp_runtime.convert.gguf_file import GGUFFile
from wisp_runtime.errors import ModelUnsupported, RuntimeFailure, TokenizerUnreadable, WeightsUnreadable

STRING, ARRAY, UINT8, UINT32 = 8, 9, 0, 4
HUGE = (1 << 63) - 1
AT_ONCE_S = 20.0  # of CPU time; without bounds none of these ends


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def header(tensors: int, fields: int, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields) + body


def array(kind: int, count: int, body: bytes = b"") -> bytes:
    return text(b"a") + struct.pack("<IIQ", ARRAY, kind, count) + body


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (header(HUGE, 0), "truncated or damaged"),
        (header(0, HUGE), "truncated or damaged"),
        (header(0, 1, text(b"", HUGE)), "truncated or damaged"),
        (header(0, 1, array(UINT8, HUGE)), "truncated or damaged"),
        (header(0, 1, array(STRING, HUGE)), "truncated or damaged"),
        (header(0, 1, array(UINT32, HUGE, bytes(1000))), "truncated or damaged"),
        (header(0, 1, array(UINT8, 50_000, bytes(50_000))), "more than 10000 values"),
        (header(0, 1, array(ARRAY, 1, struct.pack("<IQ", ARRAY, 1) * 100_000)), "cannot be read"),
        (header(0, 1, text(b"k") + struct.pack("<I", 99)), "99"),
        (header(0, 2, (text(b"k") + struct.pack("<II", UINT32, 1)) * 2), "Duplicate"),
        (header(1, 0, text(b"t") + struct.pack("<I", 1 << 30)), "truncated or damaged"),
        (
            header(1, 0, text(b"t") + struct.pack("<IQQIQ", 2, 1 << 33, 1 << 33, 0, 0)),
            "cannot be read|truncated",
        ),
        (header(1, 0, text(b"t") + struct.pack("<IQIQ", 1, HUGE, 0, 0)), "truncated or damaged"),
        (header(1, 0, text(b"t") + struct.pack("<IQIQ", 1, 1, 0, HUGE)), "truncated or damaged"),
    ],
)
def test_counts_beyond_the_file_are_refused_at_once(tmp_path, monkeypatch, data, says):
    monkeypatch.setattr(gguf_file, "MAX_VALUES", 10_000)
    (tmp_path / "m.gguf").write_bytes(data)
    began_s = time.process_time()
    with pytest.raises(WeightsUnreadable, match=says):
        GGUFFile(tmp_path / "m.gguf")
    assert time.process_time() - began_s < AT_ONCE_S


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (header(0, 0, version=77), "of GGUF version 77; versions 2 and 3 can be read"),
        (header(0, 0, version=1), "of GGUF version 1; versions 2 and 3 can be read"),
        (header(1, 0, text(b"t") + struct.pack("<IQIQ", 1, 1, 12345, 0)), "a tensor of type 12345, which"),
    ],
)
def test_a_sound_file_that_is_unknown_here_is_not_called_damaged(tmp_path, data, says):
    (tmp_path / "m.gguf").write_bytes(data)
    with pytest.raises(ModelUnsupported, match=says) as raised:
        GGUFFile(tmp_path / "m.gguf")
    assert "download" not in raised.value.message.lower()
    assert "damaged" not in raised.value.message


def rewritten(tmp_path, key, value, kind="<I"):
    """The tiny model, one of its numbers replaced."""
    path = tmp_path / "m.gguf"
    write_gguf(path)
    data = bytearray(path.read_bytes())
    at = data.index(key.encode()) + len(key) + 4
    data[at : at + struct.calcsize(kind)] = struct.pack(kind, value)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("llama.block_count", 0, "at least 1"),
        ("llama.block_count", 4_000_000_000, "at most 1024"),
        ("llama.block_count", 3, "missing"),
        ("llama.attention.head_count", 0, "at least 1"),
        ("llama.attention.head_count", HEADS * 2, "scaled or partial"),  # heads of half the size
        ("llama.embedding_length", 4_000_000_000, "scaled or partial"),
        ("llama.context_length", 0, "at least 1"),
        ("llama.feed_forward_length", 1, "must be"),
    ],
)
def test_numbers_that_are_no_models_are_refused_before_anything_is_written(tmp_path, key, value, says):
    path = rewritten(tmp_path, key, value)
    with pytest.raises(ModelUnsupported, match=says):
        convert(path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_a_special_token_beyond_the_vocabulary_is_refused(tmp_path):
    path = rewritten(tmp_path, "tokenizer.ggml.eos_token_id", len(TOKENS))
    with pytest.raises(TokenizerUnreadable, match="special token"):
        convert(path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_a_file_without_embeddings_is_refused(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for key in (
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
    ):
        writer.add_uint32(f"llama.{key}", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("output_norm.weight", np.ones(2, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelUnsupported, match=r"no matrix token_embd\.weight"):
        convert(tmp_path / "m.gguf", tmp_path / "out")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 1 << 20), st.binary(min_size=1, max_size=8))
def test_a_damaged_file_is_converted_or_refused_with_a_reason(tmp_path, position, damage):
    whole = tmp_path / "whole.gguf"
    if not whole.exists():
        write_gguf(whole)
    data = bytearray(whole.read_bytes())
    position %= 12_000  # the header; the rest is weights
    data[position : position + len(damage)] = damage
    (tmp_path / "m.gguf").write_bytes(data)
    with suppress(RuntimeFailure):
        convert(tmp_path / "m.gguf", tmp_path / "out", force=True)
