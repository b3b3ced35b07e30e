"""Load balancing: least loaded first, prefixes by rendezvous hashing."""

from __future__ import annotations

from collections import Counter

import pytest

from wisp_gateway.routing.load_balancer import EndpointLoad, prefix_key, select_endpoint, slots_of


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


def test_one_prefix_goes_to_one_pod_and_many_prefixes_spread():
    keys = [prefix_key(f"system {index}".encode()) for index in range(300)]
    idle = loads(0, 0, 0)
    selected = {select_endpoint(idle, key=keys[0], round_robin_index=index) for index in range(9)}
    assert selected == {select_endpoint(idle, key=keys[0])}
    share = Counter(select_endpoint(idle, key=key) for key in keys)
    assert min(share.values()) > 60  # of 100 expected each


def test_a_removed_pod_moves_only_its_own_prefixes():
    keys = [prefix_key(f"system {index}".encode()) for index in range(100)]
    before = {key: select_endpoint(loads(0, 0, 0), key=key) for key in keys}
    after = {key: select_endpoint(loads(0, 0), key=key) for key in keys}
    assert all(after[key] == pod for key, pod in before.items() if pod != "p2")


def test_a_favourite_over_its_share_is_passed_over():
    key = prefix_key(b"popular")
    favourite = int(select_endpoint(loads(0, 0, 0), key=key)[1])
    running = [0, 0, 0]
    for _ in range(12):
        running[int(select_endpoint(loads(*running), key=key)[1])] += 1
    assert sum(running) == 12
    assert running[favourite] == max(running)
    assert max(running) <= 6  # 1.25 x (12 + 1) / 3, rounded up
