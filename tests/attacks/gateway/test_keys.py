"""Keys: what opens nothing learns nothing (E, B9)."""

import json

import pytest
from attack import attack
from gateway_target import KEY
from wire import CHAT_PATH, chat, get, post

WRONG = ["", "Bearer ", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", f"bearer\t{KEY}\x00", "Basic dGVuYW50Og=="]


@pytest.mark.parametrize("value", WRONG)
@attack("E")
def test_a_wrong_key_opens_nothing(gateway, value):
    with gateway.connect() as client:
        header = [f"authorization: {value}"] if value else []
        assert client.send(post(CHAT_PATH, chat("locked"), *header)).answer().status in (400, 401)


@attack("E")
def test_two_thousand_guesses_of_a_key_open_nothing(gateway):
    guesses = [f"{KEY[:5]}{number}" for number in range(2_000)]
    while guesses:
        with gateway.connect() as client:
            is_kept = True
            while guesses and is_kept:
                header = f"authorization: Bearer {guesses.pop()}"
                answer = client.send(post(CHAT_PATH, chat("locked"), header)).answer()
                assert answer.status == 401
                is_kept = b"connection: close" not in answer.head.lower()


@attack("E")
def test_a_path_cannot_lend_its_right_to_a_body_that_names_another_model(gateway):
    with gateway.connect() as client:
        answer = client.send(post("/default/good" + CHAT_PATH, chat("locked"))).answer()
        assert answer.status in (401, 404)


@attack("E")
def test_a_list_of_models_hides_those_that_a_key_does_not_open(gateway):
    with gateway.connect() as client:
        listed = json.loads(client.send(get("/v1/models")).answer().body)["data"]
    assert "locked" not in {card["id"] for card in listed}
