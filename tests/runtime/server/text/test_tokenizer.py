"""A model's text side: files that are missing or broken, templates in three places, bytes of tokens."""

import errno
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_engine import END, START, write_model
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from wisp_runtime.errors import TokenizerUnreadable
from wisp_runtime.server.text.template_messages import MAX_SOURCE_CHARS
from wisp_runtime.server.text.tokenizer import load_tokenizer, read_template
from wisp_runtime.sources.listing import MAX_TEXT_BYTES


def configure(model, **config):
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    return model


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "tiny", template=None)


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("tokenizer.json", None, "missing"),
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer.json", "{}", "cannot be read"),
        ("tokenizer_config.json", "{", "no JSON"),
        ("tokenizer_config.json", "[]", "object"),
        ("chat_template.jinja", "x" * (MAX_SOURCE_CHARS + 1), "1048577 characters"),
    ],
)
def test_a_broken_file_is_named(model, file, content, says):
    (model / file).unlink(missing_ok=True)
    if content is not None:
        (model / file).write_text(content)
    with pytest.raises(TokenizerUnreadable, match=says) as raised:
        load_tokenizer(model), read_template(model)
    assert str(model) in raised.value.message


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("tokenizer.json", "256.0 MiB"),
        ("tokenizer_config.json", "16.0 MiB"),
        ("chat_template.jinja", "4.0 MiB"),
    ],
)
def test_a_file_of_a_folder_is_bounded_as_a_download_is(model, name, limit):
    with (model / name).open("wb") as file:
        file.truncate(MAX_TEXT_BYTES[name] + 1)  # a hole: no disk is used
    with pytest.raises(TokenizerUnreadable, match=f"{name} has more than {limit}"):
        load_tokenizer(model), read_template(model)


def test_an_added_token_that_the_package_renumbers_is_named(model):
    content = json.loads((model / "tokenizer.json").read_text())
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 300, "content": "<|far|>"})
    (model / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(model).renumbered == (("<|far|>", 300, 258),)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("one", "one"),
        ([{"name": "tool_use", "template": "two"}, {"name": "default", "template": "one"}], "one"),
        ([{"name": "tool_use", "template": "two"}], "two"),
        (None, None),
        ([], None),
    ],
)
def test_a_template_is_a_text_or_a_list_of_named_ones(model, value, text):
    template = read_template(configure(model, chat_template=value))
    assert (template and template.source) == text


def test_a_template_file_of_its_own_goes_first(model):
    configure(model, chat_template="from config")
    (model / "chat_template.jinja").write_text("from file")
    assert read_template(model).source == "from file"


def test_a_template_may_be_in_a_json_of_its_own(model):
    (model / "chat_template.json").write_text(json.dumps({"chat_template": "from json"}))
    assert read_template(model).source == "from json"
    configure(model, chat_template="from config")
    assert read_template(model).source == "from config"


def test_special_tokens_that_only_their_map_names_reach_the_template_and_end_answers(model):
    configure(model, chat_template="{{ bos_token }}{{ eos_token }}", bos_token="<|start|>")
    named = {"bos_token": "<|other|>", "eos_token": {"content": "<|end|>"}}
    (model / "special_tokens_map.json").write_text(json.dumps(named))
    assert read_template(model).special_tokens == {"bos_token": "<|start|>", "eos_token": "<|end|>"}
    assert load_tokenizer(model).end_id == END


def test_a_template_file_that_is_no_text_is_named(model):
    (model / "chat_template.jinja").write_bytes(b"ab\xff")
    with pytest.raises(TokenizerUnreadable, match=r"chat_template.jinja is no UTF-8 \(byte 2\)"):
        read_template(model)


def test_a_file_that_may_not_be_read_is_named(model, monkeypatch):
    def refuse(*_):  # root, as which tests may run, reads what is forbidden
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(TokenizerUnreadable, match=r"tokenizer_config.json cannot be read: Permission denied"):
        read_template(model)


def test_others_run_while_a_long_text_is_tokenized(model):
    tokenizer, steps, is_over = load_tokenizer(model), [], threading.Event()

    def count():
        while not is_over.wait(0.001):
            steps.append(1)

    with ThreadPoolExecutor() as pool:
        counting = pool.submit(count)
        text = "some words " * 50_000
        began = len(steps)
        assert len(tokenizer.encode(text, adds_special=False)) == len(text)
        others = len(steps) - began
        is_over.set()
        counting.result()
    assert others > 10  # with the interpreter's lock held: one or two


def test_special_tokens_are_written_plain_or_as_objects(model):
    configure(
        model, chat_template="{{ bos_token }}{{ eos_token }}", bos_token="<a>", eos_token={"content": "<b>"}
    )
    assert read_template(model).special_tokens == {"bos_token": "<a>", "eos_token": "<b>"}


def test_grammars_see_the_added_tokens_that_llguidance_sees_as_one(model):
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    fields = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = {"<tool_call>": False, "</x y>": False, "[TOOL_CALLS]": True, "[X]": False, "<half": False}
    for index, (text, is_special) in enumerate(added.items()):
        token = {"id": END + 1 + index, "content": text, "special": is_special, **fields}
        content["added_tokens"].append(token)
    path.write_text(json.dumps(content))
    tokenizer, reference = load_tokenizer(model), LLTokenizer(path.read_text())
    seen = [text for text in added if reference.is_special_token(tokenizer.tokenizer.token_to_id(text))]
    assert seen == ["<tool_call>", "</x y>", "[TOOL_CALLS]"]
    assert tokenizer.grammar_tokens([*added, "<none>", "a"]) == {
        text: tokenizer.tokenizer.token_to_id(text) for text in seen
    }


def test_a_model_without_a_config_still_tokenizes(model):
    (model / "tokenizer_config.json").unlink()
    tokenizer = load_tokenizer(model)
    assert read_template(model) is None
    assert tokenizer.encode("é<|end|>", adds_special=True) == [0xC3, 0xA9, END]
    assert tokenizer.special_ids == {START, END}


def test_limits_meant_for_training_are_lifted(model):
    path = model / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(path))
    assert len(load_tokenizer(model).encode("abc", adds_special=True)) == 3


@pytest.mark.parametrize(
    ("token", "data"),
    [(ord("a"), b"a"), (0xC3, b"\xc3"), (0x20, b" "), (0x00, b"\x00"), (END, b"<|end|>"), (263, b"")],
)
def test_a_tokens_bytes_are_exact(model, token, data):
    assert load_tokenizer(model).token_bytes(token) == data
