"""The file of keys of ``wisp up``: its keys as the gateway reads them, and what the terminal says of it."""

from __future__ import annotations

import logging

import pytest

from wisp_operator.local.key_file import KeyFile, read_keys


@pytest.mark.parametrize(
    ("text", "keys", "says"),
    [
        ("", 0, ""),
        ("# chat:x\n\n", 0, ""),
        ("chat:\n", 0, ""),
        ("k\n", 1, ""),
        ("a:k", 1, ""),
        ("a:k rpm=30", 1, ""),
        ("carol:sk-carol rpm=thirty", 0, "line 1: 'rpm' must be an integer such as 600"),
        ("a:k\nb:sha256:1", 1, "line 2: 'sha256:' must be followed by the 64 hexadecimal digits"),
        ("k rpm=30", 0, "line 1: a key with limits needs a name"),
    ],
)
def test_a_files_keys_are_those_that_the_gateway_reads(tmp_path, text, keys, says):
    file = tmp_path / "keys"
    file.write_text(text)
    read, warning = read_keys(file)
    assert len(read) == keys
    assert (f"{file}, {says}" in warning) if says else warning == ""


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file or directory"), (b"a:\xff\n", "it is no UTF-8 text")]
)
def test_a_file_that_cannot_be_read_is_not_taken_for_one_without_keys(tmp_path, caplog, content, says):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    keys, warning = read_keys(file)
    assert keys == []
    assert warning.startswith(f"{file} cannot be read: {says}; mend that, or give another file")
    KeyFile(file).check()
    assert caplog.messages == [warning]


def test_lines_that_cannot_be_read_and_the_loss_of_the_last_key_are_said_once_each(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    path = tmp_path / "keys"
    file = KeyFile(path)

    def said(text):
        path.write_text(text)
        caplog.clear()
        for _ in range(3):
            file.check()
        return [record.getMessage() for record in caplog.records]

    assert said("a:sk-a rpm=30\n") == []
    (line,) = said("a:sk-a rpm=30\ncarol:sk-carol rpm=thirty\n")
    assert f"{path}, line 2: 'rpm' must be an integer such as 600. These keys open nothing" in line
    broken, gone = said("carol:sk-carol tpm=x\n")
    assert "'tpm' must be an integer" in broken
    assert "holds no API key that can be read any more" in gone
    assert said("a:sk-a\n") == [f"{path} holds keys again"]
