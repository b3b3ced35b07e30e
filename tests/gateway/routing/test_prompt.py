"""Prompts as chains of hashes, and the record of what a pod was sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_gateway.routing import prefix_record
from wisp_gateway.routing.prefix_record import PrefixRecord
from wisp_gateway.routing.prompt import BLOCK_ENDS, prompt_of, session_of


def shared_bytes(left, right):
    """Length of the common prefix of two chains, as a record finds it."""
    record = PrefixRecord()
    record.resize(10**6)
    record.add(prompt_of([left]).chain)
    return record.matched_bytes(prompt_of([right]).chain)


@given(st.binary(max_size=6000), st.binary(max_size=3000), st.binary(max_size=3000))
def test_what_two_prompts_share_is_found_to_the_block(common, left, right):
    left, right = b"L" + left, b"R" + right
    found = shared_bytes(common + left, common + right)
    assert found <= len(common)
    assert found == max((end for end in BLOCK_ENDS if end <= len(common)), default=0)


def test_a_history_that_grows_is_found_but_for_its_last_block():
    history = bytes(range(256)) * 800
    for size in (3000, 20_000, 100_000, 200_000):
        found = shared_bytes(history[:size], history[: size + 5000])
        assert size * 7 / 8 - 512 < found <= size


def test_a_prompt_of_any_length_has_at_most_a_hundred_blocks():
    assert len(prompt_of([b"x" * 4_000_000]).chain) == len(BLOCK_ENDS) == 100


def test_the_division_into_fields_does_not_matter_and_the_salt_does():
    chain = prompt_of([b"system" * 200, b"messages" * 200]).chain
    assert prompt_of([b"system" * 200 + b"messages" * 200]).chain == chain
    salted = prompt_of([b"system" * 200, b"messages" * 200], salt=b'"tenant"', prefix=b"p")
    assert not set(salted.chain) & set(chain)
    assert salted.prefix_key != prompt_of([], prefix=b"p").prefix_key


def test_a_sessions_name_is_its_accounts_own_and_gateways_agree_on_it():
    assert session_of("key:1", "s") != session_of("key:2", "s")
    assert session_of("key:1", "s").hex() == "033cd659902f8d00"
    assert prompt_of([b"x"], prefix=b"x").prefix_key.hex() == "4aa35b2373653899"


def chains(*names):
    return [prompt_of([f"{name}".encode() * 1024]).chain for name in names]


def test_a_record_forgets_the_least_recently_sent_first_and_of_it_the_end():
    first, second, third = chains("aaaa", "bbbb", "cccc")  # 4 KiB each
    record = PrefixRecord()
    record.resize(2560)  # 10 KiB
    for chain in (first, second, first, third):
        record.add(chain)
    assert [record.matched_bytes(chain) for chain in (first, second, third)] == [4096, 2048, 4096]
    assert record.held_bytes == 10 * 1024
    assert record.evicted_bytes(1024) == 1024
    record.resize(512)
    assert [record.matched_bytes(chain) for chain in (first, second, third)] == [0, 0, 2048]


def test_a_record_is_bounded_in_blocks_whatever_the_pod_says(monkeypatch):
    monkeypatch.setattr(prefix_record, "MAX_BLOCKS", 10)
    monkeypatch.setattr(prefix_record, "MAX_SESSIONS", 3)
    record = PrefixRecord()
    record.resize(1 << 40)
    for number in range(20):
        record.add(prompt_of([b"%04d" % number * 256]).chain)
        record.add_session(bytes([number]))
    assert len(record) == 10
    assert [number for number in range(20) if record.has_session(bytes([number]))] == [17, 18, 19]


def test_a_pod_that_is_another_process_has_nothing():
    record = PrefixRecord()
    [chain] = chains("aaaa")
    record.add(chain)
    record.add_session(b"s")
    record.clear()
    assert (record.matched_bytes(chain), record.has_session(b"s"), record.held_bytes) == (0, False, 0)


@pytest.mark.parametrize(("size_bytes", "blocks"), [(0, 0), (511, 0), (512, 1), (8192, 16), (10_239, 16)])
def test_only_complete_blocks_count(size_bytes, blocks):
    assert len(prompt_of([b"x" * size_bytes]).chain) == blocks
