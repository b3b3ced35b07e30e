"""Bodies behind a request that waits: no budget counts what was read of them, so it must be little."""

import time

from attack import attack
from wire import CHAT_PATH, chat, post

CONNECTIONS = 300
HOLD = {"mode": "Hold", "maxWaitSeconds": 5, "heartbeatSeconds": 30, "queueLimit": 1000}


@attack("new")
def test_bodies_pipelined_behind_held_requests(gateway):
    """One address may have 2,048 connections, which together must stay below the chart's limit."""
    gateway.directory.put("sleepy", state="Asleep", coldStart=HOLD)
    gateway.until_seen()
    before_mib = gateway.gateway.rss_mib
    clients = [gateway.connect(timeout_s=0.05) for _ in range(CONNECTIONS)]
    for client in clients:
        client.send(post(CHAT_PATH, chat("sleepy")))
    for client in clients:
        client.send(post(CHAT_PATH, chat("sleepy", user="x" * 60_000)) * 8)
    time.sleep(2)
    taken_mib = gateway.gateway.peak_mib - before_mib
    for client in clients:
        client.close()
    assert taken_mib < CONNECTIONS * 0.14
