"""Load balancing: least loaded first, or least to do where the prompt is known; rows are decisions."""

from __future__ import annotations

from collections import Counter

import pytest

from wisp_gateway.routing.load_balancer import EndpointLoad, home_endpoint, select_endpoint, slots_of


def loads(*running, limit=8):
    return [EndpointLoad(f"p{index}", count, limit, count) for index, count in enumerate(running)]


@pytest.mark.parametrize(
    ("running", "round_robin_index", "expect"),
    [
        ((3, 1, 2), 0, "p1"),
        ((1, 1, 1), 0, "p0"),
        ((1, 1, 1), 1, "p1"),  # round robin among equals
        ((1, 1, 1), 5, "p2"),
        ((8, 8, 7), 0, "p2"),
        ((8, 8, 8), 0, None),  # full: the request waits in the gateway, not in a pod
        ((), 0, None),
    ],
)
def test_the_least_loaded_pod_is_selected(running, round_robin_index, expect):
    assert select_endpoint(loads(*running), round_robin_index=round_robin_index) == expect


def test_a_pod_with_many_answers_to_generate_is_passed_over():
    busy, calm = EndpointLoad("busy", 4, 16, 128), EndpointLoad("calm", 6, 16, 6)
    assert select_endpoint([busy, calm]) == "calm"
    assert {select_endpoint([busy, calm], key=b"%d" % number) for number in range(20)} == {"calm"}


@pytest.mark.parametrize(
    ("sequences", "limit", "slots"),
    [(1, 16, 1), (3, 16, 3), (128, 16, 4), (128, 2, 1), (1, 1, 1), (4096, 10_000, 2500)],
)
def test_one_request_takes_at_most_a_quarter_of_a_pods_slots(sequences, limit, slots):
    assert slots_of(sequences, limit) == slots


KEYS = [bytes([index, 7]) for index in range(100)]


def test_equals_are_ranked_by_the_prompts_key_and_many_keys_spread():
    idle = loads(0, 0, 0)
    selected = {select_endpoint(idle, key=KEYS[0], round_robin_index=index) for index in range(9)}
    assert len(selected) == 1
    share = Counter(select_endpoint(idle, key=key) for key in KEYS)
    assert min(share.values()) > 20  # of 33 expected each


def test_a_removed_pod_moves_only_its_own_prefixes():
    before = {key: select_endpoint(loads(0, 0, 0), key=key) for key in KEYS}
    after = {key: select_endpoint(loads(0, 0), key=key) for key in KEYS}
    assert all(after[key] == pod for key, pod in before.items() if pod != "p2")


def pod(name, sequences=0, **more):
    return EndpointLoad(name, sequences, 8, sequences, **more)


@pytest.mark.parametrize(
    ("a", "b", "expect"),
    [
        (pod("a", 2), pod("b", 1), "b"),  # a prompt that nobody has: least loaded
        (pod("a", 2, matched_bytes=9000), pod("b", 0), "a"),  # two answers are less than 9,000 bytes
        (pod("a", 7, matched_bytes=9000), pod("b", 0), "b"),  # seven are more
        (pod("a", 8, matched_bytes=90_000), pod("b", 7), "b"),  # no slot
        (pod("a", 2, matched_bytes=9000), pod("b", 2, matched_bytes=20_000), "b"),
        (pod("a", 0, matched_bytes=9000), pod("b", 0, matched_bytes=9000, pending_bytes=1), "a"),
        (
            pod("a", 1, matched_bytes=9000, pending_bytes=20_000),
            pod("b", 1),
            "b",
        ),  # a long prompt is before it
        (pod("a", 0, matched_bytes=500, evicted_bytes=4000), pod("b", 0), "b"),  # others' prefixes would go
        (pod("a", 1, has_session=True), pod("b", 0, matched_bytes=4000), "a"),  # a session stays
        (pod("a", 5, has_session=True), pod("b", 1), "b"),  # 5 are over 1.25 x (6 + 1) / 2, rounded up
        (pod("a", 5, has_session=True, matched_bytes=60_000), pod("b", 1), "a"),  # but its history is long
        (pod("a", 8, has_session=True), pod("b", 7), "b"),
    ],
)
def test_the_pod_with_least_to_do_is_selected(a, b, expect):
    for pods in ([a, b], [b, a]):
        assert {select_endpoint(pods, key=key) for key in KEYS} == {expect}


def test_a_prefix_that_everybody_shares_is_at_every_pod_soon():
    pods, held = [0, 0, 0, 0], {0}
    for _ in range(16):
        views = [
            pod(f"p{index}", count, matched_bytes=8000 if index in held else 0)
            for index, count in enumerate(pods)
        ]
        chosen = int(select_endpoint(views, key=KEYS[0])[1])
        pods[chosen] += 1
        held.add(chosen)
    assert pods == [4, 4, 4, 4]


@pytest.mark.parametrize(
    ("a", "b", "expect"),
    [
        (pod("a"), pod("b"), None),
        (pod("a", matched_bytes=4000), pod("b"), "a"),
        (pod("a", matched_bytes=4000), pod("b", matched_bytes=4000), None),  # either will do
        (pod("a", matched_bytes=4000), pod("b", matched_bytes=9000), "b"),
        (pod("a", has_session=True), pod("b", matched_bytes=9000), "a"),
        (pod("a", 8, matched_bytes=4000), pod("b"), "a"),  # worth a wait, as others take the slot
    ],
)
def test_the_home_of_a_request_is_the_only_pod_with_its_prefix(a, b, expect):
    assert home_endpoint([a, b]) == home_endpoint([b, a]) == expect
