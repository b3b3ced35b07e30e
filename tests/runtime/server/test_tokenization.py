"""``/tokenize`` and ``/detokenize``, in the fields of vLLM's server and of llama.cpp's."""

import pytest
from fake_engine import END, MAX_CONTEXT, START, tokens_of

HI = [{"role": "user", "content": "hi"}]
TURN = [START, *tokens_of("user\nhi"), END, *tokens_of("\n")]
PROMPT = [*TURN, START, *tokens_of("assistant\n")]


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"prompt": "hé"}, tokens_of("hé")),
        ({"prompt": ""}, []),
        ({"prompt": "a<|end|>"}, [*tokens_of("a"), END]),  # special tokens in a text are those tokens
        ({"model": "tiny", "prompt": "a", "add_special_tokens": False}, tokens_of("a")),
        ({"content": "hé"}, tokens_of("hé")),
        ({"content": "a", "add_special": True, "parse_special": True}, tokens_of("a")),
        ({"messages": HI}, PROMPT),
        ({"messages": HI, "add_generation_prompt": True}, PROMPT),
        ({"messages": HI, "add_generation_prompt": False}, TURN),
        ({"messages": HI, "chat_template_kwargs": {"x": 1}, "tools": []}, PROMPT),
    ],
)
def test_a_text_or_a_chat_becomes_the_tokens_that_its_prompt_would_have(api, path, fields, tokens):
    answer = api.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "count": len(tokens),
        "max_model_len": MAX_CONTEXT,
        "tokens": tokens,
        "token_strs": None,
    }


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {
            "tools": TOOLS,
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
        },
        {"add_generation_prompt": False},
        {"messages": [*HI, {"role": "assistant", "content": "So"}], "continue_final_message": True},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}, *HI]},
    ],
)
def test_a_chat_has_the_tokens_of_its_completions_prompt(api, server, fields):
    answer = api.post("/tokenize", json={"messages": HI} | fields)
    assert answer.status_code == 200, answer.text
    api.post("/v1/chat/completions", json={"model": "tiny", "messages": HI} | fields).raise_for_status()
    assert answer.json()["tokens"] == list(server.engine.submitted[-1].prompt)


def test_names_of_tokens_are_the_vocabularys_own_or_texts_or_bytes(api):
    answer = api.post("/tokenize", json={"prompt": "a é", "return_token_strs": True}).json()
    assert answer["token_strs"] == ["a", "Ġ", "Ã", "©"]
    answer = api.post("/tokenize", json={"content": "aé", "with_pieces": True}).json()
    assert answer["tokens"] == [
        {"id": 97, "piece": "a"},
        {"id": 0xC3, "piece": [0xC3]},
        {"id": 0xA9, "piece": [0xA9]},
    ]


@pytest.mark.parametrize("path", ["/detokenize", "/v1/detokenize"])
def test_tokens_become_their_text_special_tokens_included(api, path):
    answer = api.post(path, json={"tokens": [*tokens_of("hé"), END]})
    assert answer.json() == {"prompt": "hé<|end|>", "content": "hé<|end|>"}
    assert api.post(path, json={"tokens": []}).json()["prompt"] == ""


@pytest.mark.parametrize(
    ("path", "fields", "status", "param", "says"),
    [
        ("/tokenize", {}, 400, None, "'prompt'"),
        ("/tokenize", {"prompt": "a", "content": "a"}, 400, None, "'prompt' and 'content'"),
        ("/tokenize", {"prompt": "a", "tools": []}, 400, None, "'tools' is for 'messages'"),
        ("/tokenize", {"prompt": ["a"]}, 400, "prompt", "string"),
        ("/tokenize", {"prompt": "a" * (1 << 20) + "a"}, 400, "prompt", "1048576"),
        ("/tokenize", {"messages": []}, 400, "messages", "at least 1"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]},
            400,
            "messages.0.tool_calls.0.function",
            "name",
        ),
        ("/tokenize", {"prompt": "a", "promt": "a"}, 400, "promt", "'prompt'"),
        ("/tokenize", {"prompt": "a", "model": "other"}, 404, "model", "'other'"),
        ("/tokenize", {"content": "a", "parse_special": False}, 400, "parse_special", "not supported"),
        (
            "/tokenize",
            {"messages": HI, "continue_final_message": True},
            400,
            "continue_final_message",
            "of the assistant",
        ),
        ("/tokenize", {"messages": HI, "tools": "f"}, 400, "tools", "list"),
        ("/tokenize", {"messages": HI, "tools": [{"type": "function"}]}, 400, "tools.0.function", "Missing"),
        ("/tokenize", {"messages": HI * 4097}, 400, "messages", "4096"),
        (
            "/tokenize",
            {"messages": HI, "chat_template_kwargs": {"range": 1}},
            400,
            "chat_template_kwargs",
            "range",
        ),
        ("/tokenize", {"messages": HI, "chat_template": "x"}, 400, "chat_template", "model's own"),
        ("/detokenize", {}, 400, "tokens", "Missing"),
        ("/detokenize", {"tokens": "a"}, 400, "tokens", "list"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "tokens", "-1 at position 1"),
        ("/detokenize", {"tokens": [1 << 70]}, 400, "tokens", "0 to 263"),
        ("/detokenize", {"tokens": [1.5]}, 400, "tokens.0", "integer"),
        ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model", "'other'"),
    ],
)
def test_a_refusal_names_the_field(api, path, fields, status, param, says):
    answer = api.post(path, json=fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"] or None) == (status, param), error
    assert says in error["message"]


def test_its_responses_are_counted_by_path(api):
    api.post("/tokenize", json={"prompt": "a"})
    assert (
        'wisp_http_responses_total{model_name="tiny",path="/tokenize",status="200"}'
        in api.get("/metrics").text
    )


@pytest.mark.parametrize("begun", ["So", "<", "end", "assistant", "a ", "\n{"])  # also texts of the template
def test_a_continued_message_is_the_end_of_the_prompt(api, server, begun):
    continued = {"role": "assistant", "content": begun}
    fields = {"messages": [*HI, continued], "continue_final_message": True}
    closed = api.post("/detokenize", json={"tokens": api.post("/tokenize", json=fields).json()["tokens"]})
    assert closed.json()["prompt"].endswith(f"assistant\n{begun}")
