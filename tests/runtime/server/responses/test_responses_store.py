"""Bounds of stored responses: number, bytes, the least recently used first, shared turns counted once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wisp_runtime.server.api.responses.store import (
    RESPONSE_BYTES,
    ResponseStore,
    StoredResponse,
    StoreFull,
    Turn,
)


def turn(name, chars=10):
    return Turn(((name, "x" * chars),))


def response(name, *turns, account="", **fields):
    return StoredResponse(name, account, turns, lambda: name, **fields)


def names(store, account=""):
    return [name for name in "abcdefgh" if name in store._responses]


def test_the_least_recently_used_response_is_dropped_first():
    store = ResponseStore(max_responses=2)
    for name in "ab":
        store.put(response(name))
    store.get("a", "")
    store.put(response("c"))
    assert names(store) == ["a", "c"]


def test_a_response_under_way_is_never_dropped():
    store = ResponseStore(max_responses=2)
    store.put(response("a", is_over=False))
    store.put(response("b", is_over=False))
    with pytest.raises(StoreFull):
        store.put(response("c"))
    assert names(store) == ["a", "b"]


def test_bytes_bound_the_store_and_one_response():
    store = ResponseStore(max_bytes=4 * RESPONSE_BYTES)
    store.put(response("a", other_bytes=RESPONSE_BYTES))
    store.put(response("b", other_bytes=RESPONSE_BYTES))
    assert store.size_bytes == 4 * RESPONSE_BYTES
    store.put(response("c"))
    assert names(store) == ["b", "c"]
    with pytest.raises(StoreFull):
        store.put(response("d", other_bytes=4 * RESPONSE_BYTES))
    assert names(store) == ["b", "c"]
    assert store.size_bytes == 3 * RESPONSE_BYTES


def test_a_response_that_does_not_fit_beside_those_under_way_drops_nothing():
    store = ResponseStore(max_bytes=4 * RESPONSE_BYTES)
    shared = turn("t")
    store.put(response("a", is_over=False))
    store.put(response("b"))
    with pytest.raises(StoreFull):
        store.put(response("c", shared, other_bytes=2 * RESPONSE_BYTES))
    assert names(store) == ["a", "b"]
    store.put(response("c", other_bytes=2 * RESPONSE_BYTES))
    assert names(store) == ["a", "c"]


@pytest.mark.parametrize(
    ("bounds", "expect"),
    [
        ({"max_responses": 4}, ["a", "d", "e", "f"]),
        ({"max_bytes": 4 * RESPONSE_BYTES}, ["a", "d", "e", "f"]),
    ],
)
def test_an_account_that_stores_much_drops_its_own_responses(bounds, expect):
    store = ResponseStore(**bounds)
    store.put(response("a", account="quiet"))
    for name in "bcdef":
        store.put(response(name, account="busy"))
    assert names(store) == expect


def test_an_account_with_less_than_others_makes_place_among_theirs():
    store = ResponseStore(max_responses=4)
    for name in "abcd":
        store.put(response(name, account="first"))
    for name in "ef":
        store.put(response(name, account="second"))
    assert names(store) == ["c", "d", "e", "f"]
    store.put(response("g", account="second"))  # as many each: it drops its own
    assert names(store) == ["c", "d", "f", "g"]


def test_a_long_conversation_costs_each_of_its_turns_once():
    store = ResponseStore()
    former = ()
    for number in range(50):
        stored = response(f"r{number}", *former, turn(f"i{number}", 1000), output=turn(f"o{number}", 1000))
        store.put(stored)
        former = stored.conversation()
    one = ResponseStore()
    one.put(response("r", turn("i", 1000), output=turn("o", 1000)))
    assert store.size_bytes == 50 * one.size_bytes
    for number in range(49):
        store.drop(f"r{number}")
    assert store.item("i0", "") is not None  # the last response still holds it
    store.drop("r49")
    assert (store.size_bytes, store.item("i0", "")) == (0, None)


def test_responses_and_items_are_of_one_account():
    store = ResponseStore()
    store.put(response("a", turn("i"), account="mine"))
    assert store.get("a", "mine") is not None
    assert store.get("a", "") is store.get("a", "other") is store.item("i", "other") is None
    assert store.item("i", "mine") == ("i", "x" * 10)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "end", "drop", "get"]),
        st.sampled_from("abcdef"),
        st.sampled_from("abcdef"),
        st.integers(0, 3000),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS)
def test_the_bounds_hold_and_nothing_leaks_whatever_happens(steps):
    store = ResponseStore(max_responses=4, max_bytes=20_000)
    known = {}
    for action, name, former, size, is_over in steps:
        if action == "drop":
            store.drop(name)
        elif action == "get":
            store.get(name, "")
        elif action == "put":
            before = store.get(former, "")
            turns = before.conversation() if before else ()
            stored = known[name] = response(
                name, *turns, turn(f"i-{name}", size), is_over=is_over, other_bytes=size
            )
            _put(store, stored)
        elif name in known and store.get(name, "") is known[name]:
            stored = known[name]
            stored.output, stored.is_over, stored.other_bytes = turn(f"o-{name}", size), True, size
            _put(store, stored)
        assert len(store) <= 4
        assert 0 <= store.size_bytes <= 20_000
    for name in list(store._responses):
        store.drop(name)
    assert (store.size_bytes, len(store._turns), len(store._items)) == (0, 0, 0)
    assert not store._account_bytes
    assert not store._account_responses


def _put(store, stored):
    try:
        store.put(stored)
    except StoreFull:
        assert store.get(stored.id, "") is None
