"""A model's chat template may take its own requests' time and memory, never the server's."""

import re
import threading
import time

import httpx
import pytest
from fake_engine import live_server, write_model
from machine_pace import pace
from probes import MIB, peak_bytes, reset_peak, slowest_livez

CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
IF_ASKED = "{% if messages[0].content == 'attack' %}"  # other requests get an ordinary prompt
ATTACK = ASK | {"messages": [{"role": "user", "content": "attack"}]}
TOO_LARGE = "MiB of memory|not done after 10 s"
TOO_LONG = "2 s of processor time|not done after 10 s"  # the latter where others have the processors
POWERS = "{% set n = 9 * messages | length %}{{ n ** (n ** (n ** n)) }}"  # no constants to fold


@pytest.mark.parametrize(
    ("body", "says"),
    [
        # 10 × 2^60 characters by concatenation, which no count of written characters sees.
        (
            "{% set ns = namespace(s='xxxxxxxxxx') %}{% for i in range(60) %}"
            "{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}",
            TOO_LARGE,
        ),
        ("{% set a = ('x' * messages | length) * 1000000000 %}{{ a }}", TOO_LARGE),
        # Each level renders the next twice.
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
            TOO_LONG,
        ),
        # 10^12 iterations over one short string, without range().
        (
            "{% set s = 'x' * 10000 %}{% for a in s %}{% for b in s %}{% for c in s %}"
            "{% endfor %}{% endfor %}{% endfor %}",
            TOO_LONG,
        ),
        # One operation of the interpreter that no signal handler in Python can interrupt.
        (POWERS, TOO_LONG),
    ],
)
def test_a_hostile_template_is_a_400_with_a_reason_and_others_are_served(tmp_path, body, says):
    template = IF_ASKED + body + "{% else %}fine{% endif %}"
    with (
        live_server(write_model(tmp_path / "tiny", template)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        assert client.post(CHAT, json=ASK).status_code == 200
        reset_peak()
        before_bytes = peak_bytes()
        with slowest_livez(server.url) as gap_s:
            answer = client.post(CHAT, json=ATTACK)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "chat_template_failed")
        assert re.search(says, answer.json()["error"]["message"])
        assert gap_s[0] < 1
        assert peak_bytes() - before_bytes < 64 * MIB
        assert client.post(CHAT, json=ASK).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_chats_go_on_while_a_hostile_one_is_rendered(tmp_path, stream):
    template = IF_ASKED + POWERS + "{% else %}fine{% endif %}"
    with (
        live_server(write_model(tmp_path / "tiny", template)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
        pace() as machine,
    ):
        client.post(CHAT, json=ASK)
        attack = threading.Thread(
            target=httpx.post, args=(server.url + CHAT,), kwargs={"json": ATTACK, "timeout": 60}
        )
        attack.start()
        time.sleep(0.2)
        began_s = time.monotonic()
        assert client.post(CHAT, json=ASK | {"stream": stream}).status_code == 200
        took_s = time.monotonic() - began_s
        attack.join()
    assert took_s < machine.stretch


def test_a_constant_that_is_folded_without_end_ends_the_start_with_a_reason(tmp_path):
    model = write_model(tmp_path / "tiny", "{{ 9 ** (9 ** (9 ** 9)) }}")
    with live_server(model, is_ready=False) as server:
        failure = server.join(30)
    assert failure.reason == "TokenizerUnreadable"
    assert "chat template" in failure.message
    assert re.search(TOO_LONG, failure.message)


def test_a_template_that_runs_away_three_times_is_refused_three_times(tmp_path):
    template = IF_ASKED + "{{ 'x' * (messages | length) * 10**9 }}{% else %}fine{% endif %}"
    with (
        live_server(write_model(tmp_path / "tiny", template)) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        for _ in range(3):
            assert client.post(CHAT, json=ATTACK).status_code == 400
            assert client.post(CHAT, json=ASK).status_code == 200
