"""Requests that ask for a lot of computing: a stranger's first token does not wait for all of it (A9, B1)."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from attack import attack
from runtime_target import COMPLETIONS_PATH
from wire import CHAT_PATH, chat, post

GREEDY = {
    "one request of 128 choices": {"n": 128},
    "128 prompts": {"prompt": ["a"] * 128},
    "four long prompts": {"prompt": [[token] * 12_000 for token in range(4)]},
    "penalties over thousands of tokens": {"n": 32, "temperature": 2, "frequency_penalty": 0.1},
    "128 choices with alternatives": {"n": 128, "logprobs": 5},
    "a bias for each of 1,024 tokens": {"n": 32, "logit_bias": {str(token): 1 for token in range(1024)}},
    "16 stop strings that almost come": {"n": 32, "stop": ["zq" * 30 + str(n) for n in range(16)]},
}


@pytest.mark.parametrize("fields", GREEDY.values(), ids=GREEDY)
@attack("A9")
def test_a_request_that_takes_all_of_the_engine(runtime, fields):
    body = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True, **fields}
    first = runtime.hold(2.5, COMPLETIONS_PATH, **body)
    assert first[:12] in (b"HTTP/1.1 200", b""), first  # prompts may take longer than that


@attack("A9")
def test_three_hundred_requests_at_once(runtime):
    body = post(CHAT_PATH, chat("mine", max_tokens=16, ignore_eos=True))

    def ask(_):
        with runtime.connect(timeout_s=30) as client:
            return client.send(body).answer().status

    with ThreadPoolExecutor(50) as attackers:
        assert set(attackers.map(ask, range(300))) <= {200, 429, 503}
