"""Names across namespaces: nobody takes another's, and nobody shuts it for all (B7, U7)."""

import pytest
from attack import attack
from wire import CHAT_PATH, chat, post

EVIL = b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 6\r\n\r\n"evil"'
NAMES = ["other", "good", "default/other", "default/good", "locked", "/other", "v1"]


@pytest.mark.parametrize("name", NAMES)
@attack("B7")
def test_a_served_name_that_another_model_has_already(gateway, name):
    """The neighbours' own requests, to ``good`` and ``other``, must stay what they were."""
    gateway.pod_of(
        "thief",
        lambda connection, _: connection.sendall(EVIL),
        namespace="tenant-b",
        servedName=name,
        created=2_000_000_000,
    )
    with gateway.connect() as client:
        answer = client.send(post(CHAT_PATH, chat("default/other"))).answer()
    assert answer.status == 200
    assert b"evil" not in answer.body


@attack("use 7")
def test_a_served_name_of_another_model_in_the_same_namespace(gateway):
    gateway.pod_of(
        "thief", lambda connection, _: connection.sendall(EVIL), servedName="other", created=2_000_000_000
    )
    with gateway.connect() as client:
        answer = client.send(post(CHAT_PATH, chat("other"))).answer()
    assert answer.status == 200
    assert b"evil" not in answer.body


@attack("B7")
def test_a_hundred_models_that_claim_one_name(gateway):
    for number in range(100):
        gateway.directory.put(
            f"claim-{number}",
            gateway.pod_address,
            namespace=f"tenant-{number}",
            servedName="other",
            created=2_000_000_000 + number,
        )
    gateway.until_seen()


@attack("C log forging")
def test_a_path_with_a_line_feed_forges_no_line_of_the_log(gateway):
    with gateway.connect() as client:
        forged = "/v1/nope%0A2026-01-01%2000:00:00,000%20INFO%20forged"
        client.send(f"GET {forged} HTTP/1.1\r\nhost: x\r\n\r\n".encode()).answer()
    gateway.until_seen()
    assert not any(
        line.startswith("2026-01-01 00:00:00,000") for line in gateway.gateway.output().splitlines()
    )
