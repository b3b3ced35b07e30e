"""The names that a runtime answers to: its served name, which is in every answer, and its alias."""

import httpx
import pytest
from fake_engine import END, live_server, tokens_of

ASK = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def api(tiny_model):
    with (
        live_server(tiny_model, served_name="Org/beta", alias="chat") as server,
        httpx.Client(base_url=server.url) as client,
    ):
        server.engine.script = lambda _: [*tokens_of("Hello"), END]
        yield client


@pytest.mark.parametrize("name", ["Org/beta", "chat"])
def test_both_names_are_answered_listed_and_answers_have_the_served_one(api, name):
    assert name in [card["id"] for card in api.get("/v1/models").json()["data"]]
    assert api.get(f"/v1/models/{name}").json()["id"] == name
    assert api.post("/v1/chat/completions", json={**ASK, "model": name}).json()["model"] == "Org/beta"
    completion = api.post("/v1/completions", json={"model": name, "prompt": "hi"})
    assert completion.json()["model"] == "Org/beta"
    assert api.get("/state").json()["model"] == "Org/beta"


def test_another_name_is_refused_with_those_that_there_are(api):
    refused = api.post("/v1/chat/completions", json={**ASK, "model": "alpha"})
    assert refused.status_code == 404
    assert "serves 'Org/beta', also called 'chat'" in refused.json()["error"]["message"]
    assert api.get("/v1/models/alpha").status_code == 404
