"""Scan of JSON bodies: the fields a parser would find, limits, and time on hostile texts."""

from __future__ import annotations

import json
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_http.json_scan import Field, JsonLimits, JsonRefused, JsonScan, JsonTooComplex

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
MIB = 1 << 20


def scan(text: bytes, limits: JsonLimits | None = None) -> dict[str, Field]:
    """Scan a complete text at once; return its top-level fields."""
    (running := JsonScan(limits)).feed(text)
    return running.finish()


@given(
    st.dictionaries(st.text(max_size=20), VALUES, max_size=6),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.lists(st.integers(1, 40), max_size=20),
)
def test_fields_are_those_that_a_parser_finds_however_the_bytes_arrive(document, is_ascii, indent, sizes):
    text = json.dumps(document, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "surrogatepass")
    running, start = JsonScan(), 0
    for size in sizes:
        running.feed(text[start : start + size])
        start += size
    running.feed(text[start:])
    fields = running.finish()
    assert {name: json.loads(text[field.start : field.end]) for name, field in fields.items()} == document


@given(st.text(alphabet='{}[]",:\\ a1', max_size=30))
def test_every_object_that_a_parser_takes_is_taken(text):
    try:
        document = json.loads(text, object_pairs_hook=list)
    except ValueError:
        return
    if text.lstrip(" ").startswith("{") and len({name for name, _ in document}) == len(document):
        assert list(scan(text.encode())) == [name for name, _ in document]


@pytest.mark.parametrize("number", ["2.5", "1e-9", "1E9", "true"])
def test_numbers_that_take_a_parser_long_are_bounded_and_texts_with_dots_are_not(number):
    """A parser takes 3 µs for a subnormal of fifty digits, thirty times as long as for a token id."""
    few = JsonLimits(max_fractions=100)
    scan(f'{{"a": [{",".join([number] * 100)}]}}'.encode(), few)
    scan(f'{{"a": "{number * 1000}", "b": [{"7," * 1000}7]}}'.encode(), few)
    with pytest.raises(JsonTooComplex, match="100 numbers with fractions"):
        scan(f'{{"a": [{",".join([number] * 101)}]}}'.encode(), few)


def test_counts_are_of_one_field():
    fields = scan(b'{"a": ["x", "y", [1], {"b": "z"}], "c": "one", "d": 1}')
    assert [(field.strings, field.containers) for field in fields.values()] == [(4, 3), (1, 0), (0, 0)]


def test_counts_are_the_same_over_slices():
    text = json.dumps({"a": 1, "prompt": ["p" * 100] * 1000, "tokens": [[1, 2, 3]] * 5000}).encode()
    fields = scan(text)
    assert (fields["prompt"].strings, fields["prompt"].containers) == (1000, 1)
    assert (fields["tokens"].strings, fields["tokens"].containers) == (0, 5001)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", "ends too early"),
        (b'{"a": 1', "ends too early"),
        (b'{"a": "x\\', "ends too early"),
        (b"[1]", "not an object"),
        (b"nonsense", "not an object"),
        (b'{"a": 1} {', "byte 9"),
        (b'{"a": 1,}', "byte 8"),
        (b'{"a" 1}', "byte 5"),
        (b'{"a": 1 2}', "byte 8"),
        (b'{"a": tr ue}', "byte 9"),
        (b'{"a": "x" "y"}', "byte 10"),
        (b'{"a":}', "byte 5"),
        (b"{1: 2}", "byte 1"),
        (b'{"a": 1}}', "byte 8"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b'{"model": 1, "mod\\u0065l": 2}', "'model' twice"),  # as a parser reads the name
        (b'{"\xff": 1}', "not text"),
    ],
)
def test_refusals_name_the_place(text, says):
    with pytest.raises(JsonRefused, match=says):
        scan(text)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (b'{"a": {"b": {}}}', JsonLimits(max_depth=2)),
        (b'{"a": [[], []]}', JsonLimits(max_containers=3)),
        (b'{"a": [1, 2, 3]}', JsonLimits(max_values=4)),
        (b'{"a": 1, "b": 2}', JsonLimits(max_fields=1)),
        (b'{"' + b"a" * 300 + b'": 1}', JsonLimits()),
        (b'{"a": ' + b"[" * 100_000, JsonLimits()),
    ],
)
def test_limits_are_exact(text, limits):
    with pytest.raises(JsonTooComplex):
        scan(text, limits)


def test_white_space_of_any_length_may_lie_between_tokens():
    space = b" " * 20_000
    text = space.join([b"{", b'"a"', b":", b"1", b",", b'"b"', b":", b"[", b"2", b"]", b"}", b""])
    fields = scan(space + text)
    assert [text[field.start - 20_000 : field.end - 20_000][:1] for field in fields.values()] == [b"1", b"["]


def test_commas_and_brackets_in_strings_count_for_nothing():
    text = json.dumps({"prompt": '{"a": [1, 2, \\"' * 100_000}).encode()
    assert scan(text, JsonLimits(max_containers=1, max_values=2))["prompt"].strings == 1


def repeated(part: bytes, before: bytes = b'{"a": [', after: bytes = b"]}") -> bytes:
    return before + part * (8 * MIB // len(part)) + after


@pytest.mark.parametrize(
    "make",
    [
        partial(repeated, b'{"":{}},'),
        partial(repeated, b"[],"),
        partial(repeated, b"9999,"),
        partial(repeated, b'"",'),
        partial(repeated, b"x", b'{"a": "', b'"}'),
        partial(repeated, b'\\"', b'{"a": "', b'"}'),
        partial(repeated, b"\\\\", b'{"a": "', b'"}'),
        partial(repeated, b"\\u00e4", b'{"a": "', b'"}'),
        partial(repeated, b"[", b'{"a": '),
        partial(repeated, b'"', b'{"a": '),
        partial(repeated, b'"a":1,', b"{"),
        partial(repeated, b" ", b"{"),
    ],
)
def test_hostile_texts_of_8_mib_cost_an_event_loop_50_ms_at_most_per_256_kib(make):
    """The bound is for a loaded machine; undisturbed the worst slice takes some 3 ms."""
    text, running, longest_s = make(), JsonScan(JsonLimits(max_values=1 << 22)), 0.0
    for start in range(0, len(text), 256 * 1024):
        began_s = time.thread_time()
        try:
            running.feed(text[start : start + 256 * 1024])
        except JsonRefused:
            break
        finally:
            longest_s = max(longest_s, time.thread_time() - began_s)
    assert longest_s < 0.05
