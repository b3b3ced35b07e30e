"""Responses through a gateway and three runtime servers, by the official client: each pod keeps its own."""

import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import openai
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "runtime/support"))
from fake_engine import live_server, write_model

ABSENT = f"resp_{'0' * 44}"


@pytest.fixture
def servers(world, tmp_path):
    model = write_model(tmp_path / "m")
    with ExitStack() as stack:
        servers = [stack.enter_context(live_server(model, served_name="m")) for _ in range(3)]
        ports = [int(server.url.rpartition(":")[2]) for server in servers]
        pods = [SimpleNamespace(port=port, address=f"127.0.0.1:{port}") for port in ports]
        world.model("m", *pods, routing="LeastLoad")
        world.start()
        yield servers


@pytest.fixture
def client(world, servers):
    url = f"{world.url}/v1"
    with openai.OpenAI(base_url=url, api_key="-", max_retries=0, _strict_response_validation=True) as client:
        yield client


def test_a_conversation_stays_where_it_is_kept(client, servers):
    for _ in range(3):
        last = client.responses.create(model="m", input="hi")
        for _ in range(2):
            last = client.responses.create(model="m", input="more", previous_response_id=last.id)
        assert len(list(client.responses.input_items.list(last.id, limit=2))) == 5
        *_, end = client.responses.create(model="m", input="x", stream=True, previous_response_id=last.id)
        assert client.responses.retrieve(end.response.id) == end.response
    assert all(len(server.engine.submitted) % 4 == 0 for server in servers)  # whole conversations


def test_a_response_in_the_background_is_found_read_and_deleted(client, servers):
    created = client.responses.create(model="m", input="x", background=True)
    for server in servers:
        server.wait_until(lambda server=server: server.server.service.active == 0)
    rest = list(client.responses.retrieve(created.id, stream=True, starting_after=3))
    assert [event.sequence_number for event in rest] == list(range(4, 4 + len(rest)))
    assert client.responses.cancel(created.id).status == "completed"
    client.responses.delete(created.id)
    for identity in (created.id, ABSENT):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(identity)
        with pytest.raises(openai.BadRequestError) as raised:
            client.responses.create(model="m", input="x", previous_response_id=identity)
        assert raised.value.code == "previous_response_not_found"
