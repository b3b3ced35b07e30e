"""Lines of API keys: names, hashes, limits, and lines that cannot be read."""

from __future__ import annotations

import hashlib
import random

import pytest

from wisp_gateway.discovery.key_digests import Key, digest, parse_keys
from wisp_gateway.inbound.auth import KeyFile
from wisp_names.key_limits import UNLIMITED, KeyLimits

HEX = hashlib.sha256(b"sk-1").hexdigest()


@pytest.mark.parametrize(
    ("line", "name", "limits"),
    [
        ("a:sk-1", "a", UNLIMITED),
        ("a:sk-1 rpm=600", "a", KeyLimits(requests_per_minute=600)),
        ("a: sk-1\trpm=6   tpm=100000 concurrent=8 body=1MiB", "a", KeyLimits(6, 100_000, 8, 2**20)),
        ("a:sk-1 body=65536", "a", KeyLimits(body_bytes=65536)),
        ("a:sk-1 body=2k", "a", KeyLimits(body_bytes=2000)),
        (f"a:sha256:{HEX}", "a", UNLIMITED),
        (f"a:sha256:{HEX.upper()} rpm=1", "a", KeyLimits(1)),
        (f"sha256:{HEX}", "", UNLIMITED),
    ],
)
def test_a_line_names_a_key_and_its_limits(line, name, limits):
    assert parse_keys(line, "f").keys == {digest("sk-1"): Key(name, limits=limits, source="f")}


@pytest.mark.parametrize(
    "key", ["old key with spaces", "a=b", "rpm=600", "sk-1=", "x = y", "sk-1 # spare", "sk-1 123="]
)
def test_a_key_of_before_there_were_limits_still_opens(key):
    assert digest(key) in parse_keys(f"a:{key}").keys


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("a:sk-1 rmp=600", "word 1 after the key is no limit; there are rpm, tpm, concurrent, body"),
        ("a:sk-1 secret=1", "word 1 after the key is no limit"),  # what may be a part of a key is not logged
        ("a:sk-1 rpm=0", "'rpm' must be from 1 to"),
        ("a:sk-1 rpm=-1", "'rpm' must be an integer such as 600"),
        ("a:sk-1 rpm=", "'rpm' must be an integer"),
        ("a:sk-1 tpm=1e6", "'tpm' must be an integer"),
        ("a:sk-1 tpm=99999999999999999999", "'tpm' must be an integer"),
        ("a:sk-1 concurrent=two", "'concurrent' must be an integer"),
        ("a:sk-1 body=1.5MiB", "'body' must be bytes such as 65536, 512KiB or 1MiB"),
        ("a:sk-1 rpm=1 rpm=2", "'rpm' is given twice"),
        ("sk-1 rpm=1", "a key with limits needs a name"),
        ("a:sha256:sk-1", "'sha256:' must be followed by the 64 hexadecimal digits"),
        (f"a:sha256:{HEX[:-1]}", "'sha256:' must be followed"),
    ],
)
def test_a_line_that_cannot_be_read_opens_nothing_and_its_number_and_field_are_logged(line, says):
    parsed = parse_keys(f"# keys\n{line}\nb:sk-good\n", "/keys")
    assert parsed.keys == {digest("sk-good"): Key("b", source="/keys")}
    assert f"/keys, line 2: {says}" in parsed.warning
    assert "sk-1" not in parsed.warning
    assert "secret" not in parsed.warning
    assert HEX[:-1] not in parsed.warning


def test_a_file_of_bad_lines_is_one_line_of_the_log_until_these_change(tmp_path, caplog):
    path, bad = tmp_path / "keys", "".join(f"k{number}:sk rpm=x\n" for number in range(100))
    file = KeyFile(path)
    for text in (bad, bad + "b:sk-b\n", "c:sk-c\n", bad):
        path.write_text(text)
        assert len(file.read()) == len(file.read()) == ("sk-" in text)
    first, again = caplog.messages
    assert first == again
    assert "line 1: 'rpm' must be" in first
    assert "line 5: 'rpm'" in first
    assert "; and 95 more. These keys open nothing" in first


def test_a_hash_opens_for_its_key_and_not_for_itself():
    keys = parse_keys(f"a:sha256:{HEX}").keys
    assert digest("sk-1") in keys
    assert not {digest(token) for token in (HEX, f"sha256:{HEX}", "")} & keys.keys()


def test_random_lines_never_raise_and_never_open_for_an_empty_key():
    chance = random.Random(18)
    words = [
        "a:",
        ":",
        "sk",
        "sha256:",
        HEX,
        " ",
        "\t",
        "=",
        "rpm=1",
        "tpm=",
        "body=1MiB",
        "é",
        "\x00",
        "#",
        "\n",
    ]
    for _ in range(5000):
        text = "".join(chance.choices(words, k=chance.randrange(12)))
        assert digest("") not in parse_keys(text).keys
