"""GGUF files that lie: a conversion refuses them with a sentence and leaves nothing."""

from __future__ import annotations

import struct
from contextlib import suppress

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_gguf import HEADS, TOKENS, write_gguf

from wisp_runtime.convert.gguf import convert
from wisp_runtime.errors import ModelUnsupported, RuntimeFailure, TokenizerUnreadable


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


@pytest.mark.parametrize("change", [{"pre": "x" * 9_000}, {"model": "x" * 9_000}, {"merges": ["x" * 9_000]}])
def test_long_texts_of_a_tokenizer_are_not_repeated(tmp_path, change):
    write_gguf(tmp_path / "m.gguf", change=change)
    with pytest.raises((ModelUnsupported, TokenizerUnreadable)) as raised:
        convert(tmp_path / "m.gguf", tmp_path / "out")
    assert len(raised.value.message) < 1000
