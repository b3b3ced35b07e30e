"""A model's way of pooling, by the files of its checkpoint."""

import json

import pytest
from fake_engine import END, write_model
from tiny_gguf import write_gguf
from tokenizers import Tokenizer

from wisp_runtime.errors import TokenizerUnreadable
from wisp_runtime.server.pooling.settings import PoolingSettings, read_pooling
from wisp_runtime.server.text.tokenizer import load_tokenizer

KINDS = "sentence_transformers.models."
THREE = [
    {"idx": 0, "type": f"{KINDS}Transformer"},
    {"type": f"{KINDS}Pooling"},
    {"type": f"{KINDS}Normalize"},
]
TWO = THREE[:2]


@pytest.fixture
def folder(tmp_path):
    return write_model(tmp_path / "model")


def read(folder, *names):
    return read_pooling(folder, names, load_tokenizer(folder))


def write(folder, modules=None, pooling=None):
    if modules is not None:
        (folder / "modules.json").write_text(json.dumps(modules))
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


@pytest.mark.parametrize(
    ("modules", "pooling", "kind", "normalises"),
    [
        (None, None, "last", True),
        (THREE, None, "last", True),  # subfolders of a hub are not fetched
        (TWO, None, "last", False),
        (THREE, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last", True),
        (TWO, {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 8}, "mean", False),
        (TWO, {"pooling_mode": "mean"}, "mean", False),
        (THREE, {"pooling_mode": "lasttoken"}, "last", True),
    ],
)
def test_modules_say_how_to_pool_and_whether_to_normalise(folder, modules, pooling, kind, normalises):
    write(folder, modules, pooling)
    settings = read(folder)
    assert (settings.kind, settings.normalises, settings.refusal) == (kind, normalises, "")


@pytest.mark.parametrize(
    ("modules", "pooling", "says"),
    [
        ([*THREE, {"type": f"{KINDS}Dense"}], None, "'Dense'"),
        (THREE, {"pooling_mode_cls_token": True}, "pooling_mode_cls_token"),
        (THREE, {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "and"),
        (THREE, {"pooling_mode": "cls"}, "cls"),
    ],
)
def test_what_is_not_computed_here_is_refused_and_never_computed_otherwise(folder, modules, pooling, says):
    write(folder, modules, pooling)
    assert says in read(folder).refusal


@pytest.mark.parametrize("text", ["{", "[1]", '[{"path": ""}]', "7"])
def test_a_broken_list_of_modules_ends_the_start_with_its_name(folder, text):
    (folder / "modules.json").write_text(text)
    with pytest.raises(TokenizerUnreadable, match=r"modules\.json"):
        read(folder)


def test_texts_end_with_the_end_token_where_the_tokenizers_settings_say_so(folder):
    assert read(folder).end_token is None
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"add_eos_token": True}))
    assert read(folder).end_token == END


def with_words(folder, *words):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens(list(words))
    tokenizer.save(str(folder / "tokenizer.json"))
    return [tokenizer.token_to_id(word) for word in words]


def test_a_reranker_is_known_by_its_name_or_by_the_words_of_its_config(folder):
    no, yes, bad, good, _ = with_words(folder, "no", "yes", "bad", "good", "<|im_start|>")
    assert read(folder, "Qwen3-0.6B").verdicts is None
    assert read(folder, "small", "Qwen/Qwen3-Reranker-0.6B").verdicts == (no, yes)
    (folder / "config.json").write_text(json.dumps({"classifier_from_token": ["bad", "good"]}))
    assert read(folder, "any").verdicts == (bad, good)
    (folder / "config.json").write_text(json.dumps({"classifier_from_token": ["bad"]}))
    assert read(folder, "any").verdicts is None


def test_a_name_alone_makes_no_reranker_of_a_model_without_the_words(folder):
    assert read(folder, "my-reranker") == PoolingSettings()


@pytest.mark.parametrize(
    ("fields", "kind", "end_token", "refusal"),
    [
        ({}, "last", None, ""),
        ({"qwen3.pooling_type": 3, "tokenizer.ggml.add_eos_token": True}, "last", 0, ""),  # Qwen3-Embedding
        ({"qwen3.pooling_type": 1}, "mean", None, ""),
        ({"qwen3.pooling_type": 2}, "last", None, "pooling_type 2"),  # CLS
    ],
)
def test_a_gguf_file_names_its_pooling_and_whether_texts_end_with_the_end_token(
    tmp_path, fields, kind, end_token, refusal
):
    write_gguf(tmp_path / "m.gguf", architecture="qwen3", fields=fields)
    settings = read(tmp_path / "m.gguf")
    assert (settings.kind, settings.normalises, settings.end_token) == (kind, True, end_token)
    assert refusal in settings.refusal
    assert bool(refusal) == bool(settings.refusal)
