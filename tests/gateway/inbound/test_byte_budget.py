"""Bytes held for clients: a bound for all, and a share that one account may take."""

from __future__ import annotations

import time

from machine_pace import pace
from raw_client import HEAD, connect

from wisp_gateway.inbound.byte_budget import FREE_BYTES, ByteBudget

MIB = 1 << 20


def test_one_account_takes_a_quarter_and_all_together_no_more_than_there_is():
    budget = ByteBudget(100)
    held = [budget.open(f"holder {index}") for index in range(5)]
    assert [holding.take(FREE_BYTES + 25) for holding in held] == [True] * 4 + [False]
    assert not held[0].take(1)
    held[0].release(5)
    assert held[4].take(FREE_BYTES + 5)
    assert budget.held_bytes == 100
    for holding in held:
        holding.release()
    assert budget.held_bytes == 0


def test_a_short_request_is_never_refused():
    budget = ByteBudget(100)
    assert budget.open("address").take(FREE_BYTES + 25)
    assert [budget.open("address").take(FREE_BYTES) for _ in range(9)] == [True] * 9
    assert not budget.open("address").take(FREE_BYTES + 1)


def test_bytes_that_move_to_a_holder_without_room_are_given_back():
    budget = ByteBudget(100)
    full, moving = budget.open("model"), budget.open("client")
    assert full.take(FREE_BYTES + 20)
    assert moving.take(FREE_BYTES + 10)
    assert not moving.move_to("model")
    assert (moving.count, budget.held_bytes) == (0, 20)


def test_bodies_held_for_a_sleeping_model_are_bounded_and_other_models_go_on(world):
    world.model("asleep", state="Asleep", coldStart={"queueLimit": 100})
    world.model("m", world.pod())
    world.start(max_held_bytes=8 * MIB)
    body = {"model": "asleep", "prompt": "x" * (MIB - 1000)}
    for _ in range(2):  # a quarter of the budget
        world.background(lambda: world.post("/v1/completions", json=body, timeout=60))
    world.until(lambda: world.state("asleep")["waiting"] == 2)
    refused = world.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_much_held")
    assert refused.headers["retry-after"] == "1"
    assert world.post("/v1/completions", json={**body, "model": "m"}).status_code == 200
    world.model("asleep", world.pods[0])
    world.until(lambda: world.state("asleep")["waiting"] == 0)
    world.until(lambda: world.gateway.app._budget.held_bytes == 0)


def test_unfinished_bodies_of_one_client_are_bounded(world):
    world.model("m", world.pod())
    world.start(max_held_bytes=8 * MIB)
    started = b"content-length: 2000000\r\n\r\n" + b'{"prompt": "' + b"x" * (MIB - 1000)
    held = [connect(world) for _ in range(2)]
    for connection in held:
        connection.sendall(HEAD + started)
    world.until(lambda: world.gateway.app._budget.held_bytes > 2 * MIB - 40_000)
    with connect(world) as third:
        third.sendall(HEAD + started)
        assert third.recv(65536).startswith(b"HTTP/1.1 429 ")
    assert world.post().status_code == 200  # short, from the same address
    for connection in held:
        connection.close()
    world.until(lambda: world.gateway.app._budget.held_bytes == 0)


def test_a_hostile_body_does_not_stop_another_stream(world):
    """8 MiB of empty objects took a parser two seconds."""
    world.model("m", world.pod(world.does.talk(60, gap_s=0.02)))
    world.start(max_body_bytes=9 * MIB)
    gaps, stream = [], world.chat(stream=True)
    hostile = b'{"model": "m", "prompt": [' + b'{"":{}},' * MIB + b"0]}"
    headers = {"content-type": "application/json"}
    with pace() as machine:
        attack = world.background(lambda: world.post("/v1/completions", content=hostile, headers=headers))
        before_s = time.monotonic()
        for _ in stream:
            gaps.append(time.monotonic() - before_s)
            before_s = time.monotonic()
    assert attack.result(60).status_code == 400
    assert max(gaps[1:]) < 0.25 * machine.stretch
