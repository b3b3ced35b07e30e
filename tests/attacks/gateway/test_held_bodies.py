"""Bodies held for a model that sleeps: each within its limit, together more than the memory there is (A5)."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from attack import attack
from wire import CHAT_PATH, post

REFUSED = (400, 408, 413, 429)  # 408: on a busy machine the last of 60 does not arrive within its time


@pytest.mark.parametrize("count", [6, 60])
@attack("A5")
def test_bodies_held_for_a_model_that_sleeps(gateway, count):
    """Each is within the limit of one body; together they would be all memory of the gateway."""

    def hold(_):
        body = b'{"model":"asleep","stream":true,"messages":[' + b'{"":{}},' * 120_000 + b"0]}"
        with gateway.connect() as client:
            return client.send(post(CHAT_PATH, body)).answer().status

    with ThreadPoolExecutor(count) as attackers:
        assert set(attackers.map(hold, range(count))) <= {200, 503, *REFUSED}
