"""A request has one id, in the answers and logs of both programs, and no word of its prompt is logged."""

import re

import httpx
import pytest
from two_programs import until

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
SECRET = "marzipan"


def body(text=SECRET, **fields):
    return {"model": "tiny", "max_tokens": 20, "messages": [{"role": "user", "content": text}], **fields}


def logged(programs, request):
    """Access records of a request, of the gateway and of the runtime."""
    wanted = {"request": request, "message": "answered"}
    return [until(lambda name=name: programs.records(name, **wanted)) for name in ("gateway", "runtime")]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("given", ["job-7.a:b", None])
def test_one_search_finds_a_request_in_both_logs(programs, path, is_stream, given):
    given = given and f"{given}-{path[4:7]}-{is_stream}"
    answer = programs.client.post(
        path, json=body(stream=is_stream), headers={"x-request-id": given} if given else {}
    )
    assert answer.status_code == 200, answer.text
    request = answer.headers["x-request-id"]
    assert request == given or (given is None and re.fullmatch("req-[0-9a-f]{32}", request))
    assert answer.headers.get("request-id") == (request if path == MESSAGES else None)
    [gateway], [runtime] = logged(programs, request)
    assert gateway["method"] == runtime["method"] == "POST"
    assert gateway["path"] == runtime["path"] == path
    assert (gateway["model"], runtime["model"]) == ("team/tiny", "tiny")
    assert gateway["status"] == runtime["status"] == 200
    assert 0 <= gateway["queue_seconds"] <= gateway["seconds"]
    for record in (gateway, runtime):
        assert (record["completion_tokens"], record["cached_tokens"], record["finish"]) == (13, 0, "stop")
        assert record["prompt_tokens"] > len(SECRET)
        assert 0 < record["first_token_seconds"] <= record["seconds"]


def test_a_failure_of_the_engine_is_logged_with_the_id_that_its_answer_has(programs):
    answer = programs.client.post(CHAT, json=body(f"{SECRET} engine fails"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_failed")
    request = answer.headers["x-request-id"]
    [gateway], [runtime] = logged(programs, request)
    assert gateway["status"] == runtime["status"] == 500
    [failure] = programs.records("runtime", request=request, level="error")
    assert "a scripted failure" in failure["message"]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a\tb", 'a"b', "é".encode("latin-1")])
def test_the_runtime_gives_an_id_of_its_own_where_a_request_has_no_valid_one(programs, given):
    answer = httpx.post(f"http://{programs.runtime}{CHAT}", json=body(), headers={"x-request-id": given})
    request = answer.headers["x-request-id"]
    assert re.fullmatch("req-[0-9a-f]{32}", request)
    assert until(lambda: programs.records("runtime", request=request, status=200))


def test_an_error_of_anthropics_has_the_id_in_its_body(programs):
    answer = programs.client.post(MESSAGES, json=body(temperature=7), headers={"x-request-id": "wrong-1"})
    assert answer.status_code == 400
    assert answer.headers["request-id"] == answer.json()["request_id"] == "wrong-1"


def test_probes_are_not_logged_and_prompts_never(programs):
    for path in ("/livez", "/readyz", "/metrics", "/state"):
        programs.client.get(path)
        httpx.get(f"http://{programs.runtime}{path}")
    request = programs.client.post(CHAT, json=body()).headers["x-request-id"]
    logged(programs, request)
    for log in programs.logs.values():
        text = log.read_text()
        assert SECRET not in text
        assert not re.search("livez|readyz|metrics|/state", text)
