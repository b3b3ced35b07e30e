"""Valid requests of every endpoint, from which hostile ones are made."""

from __future__ import annotations

from typing import Any

Json = Any
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"enum": ["x", "y", None]}},
    "required": ["a"],
    "additionalProperties": False,
}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "1"},
    {"role": "user", "content": "more é"},
]
FUNCTION = {"name": "f", "description": "F.", "parameters": SCHEMA, "strict": True}
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "seed": 7, "stop": ["wor"], "presence_penalty": 0.5}
EXTENSIONS = {
    "top_k": 20,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "logit_bias": {"97": 2},
    "stop_token_ids": [9],
    "min_tokens": 1,
    "bad_words": ["no"],
}
HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
CHATS: list[Json] = [
    HELLO,
    HELLO | {"stream": True, "stream_options": {"include_usage": True}},
    HELLO | SAMPLING | EXTENSIONS | {"n": 2, "logprobs": True, "top_logprobs": 2, "stream": False},
    {
        "model": "tiny",
        "messages": MESSAGES,
        "max_completion_tokens": 8,
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "stream": True,
    },
    HELLO | {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    HELLO
    | {"structured_outputs": {"regex": "[ab]{2,4}"}, "chat_template_kwargs": {"enable_thinking": False}},
    HELLO | {"guided_choice": ["yes", "no"], "reasoning_effort": "low", "thinking_token_budget": 4},
    HELLO | {"prompt_logprobs": 1, "truncate_prompt_tokens": 8, "cache_salt": "s", "request_id": "mine"},
]
COMPLETIONS: list[Json] = [
    {"model": "tiny", "prompt": "Hello", "max_tokens": 4, "stream": True},
    {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 2, "best_of": 2, "n": 1} | SAMPLING | EXTENSIONS,
    {"model": "tiny", "prompt": [[72, 105], [72]], "max_tokens": 0, "echo": True, "logprobs": 1},
    {"model": "tiny", "prompt": "x", "max_tokens": 8, "guided_grammar": 'start: "a" | "b"', "user": "u"},
]
ITEMS: list[Json] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "1"},
    {"role": "user", "content": "more"},
]
RESPONSES: list[Json] = [
    {"model": "tiny", "input": "hi", "max_output_tokens": 4, "stream": True},
    {"model": "tiny", "input": "hi", "max_output_tokens": 4, "background": True, "metadata": {"a": "b"}},
    {"model": "tiny", "input": "hi", "max_output_tokens": 4, "background": True, "stream": True},
    {"model": "tiny", "input": "more", "max_output_tokens": 4, "previous_response_id": "{ID}"},
    {
        "model": "tiny",
        "instructions": "Be brief.",
        "input": ITEMS,
        "max_output_tokens": 8,
        "tools": [{"type": "function", **FUNCTION}],
        "tool_choice": "auto",
        "store": False,
        "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
        "top_logprobs": 1,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA}},
        "truncation": "auto",
    },
]
CONVERSATION: Json = {
    "model": "tiny",
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "wisp-text-YQ=="},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "1"}]},
    ],
    "tools": [{"name": "f", "description": "F.", "input_schema": SCHEMA, "strict": True}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 2},
}
ANTHROPIC_HELLO = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
BODIES: dict[str, list[Json]] = {
    "/v1/chat/completions": CHATS,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": [
        {"model": "tiny", "input": ITEMS, "tools": [{"type": "function", **FUNCTION}]}
    ],
    "/v1/messages": [
        ANTHROPIC_HELLO,
        ANTHROPIC_HELLO | {"stream": True, "stop_sequences": ["wor"], "temperature": 0.5, "top_k": 3},
        CONVERSATION | {"max_tokens": 8, "stream": True},
    ],
    "/v1/messages/count_tokens": [CONVERSATION],
    "/v1/embeddings": [
        {"model": "tiny", "input": ["a", "bc"], "encoding_format": "base64", "dimensions": 4},
        {"model": "tiny", "input": [[72, 105], [72]], "normalize": False, "truncate_prompt_tokens": 1},
    ],
    "/v1/score": [
        {"model": "tiny", "text_1": "a", "text_2": ["b", "c"]},
        {"model": "tiny", "queries": ["a"], "documents": ["b"], "truncate_prompt_tokens": 4},
    ],
    "/v1/rerank": [
        {
            "model": "tiny",
            "query": "a",
            "documents": ["b", {"text": "c"}],
            "top_n": 1,
            "return_documents": True,
        }
    ],
    "/v2/rerank": [{"model": "tiny", "query": "a", "documents": ["b"], "max_tokens_per_doc": 4}],
    "/tokenize": [
        {"model": "tiny", "prompt": "Hello é", "return_token_strs": True},
        {"model": "tiny", "messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]},
        {"content": "Hello", "add_special": True, "with_pieces": True},
    ],
    "/detokenize": [{"model": "tiny", "tokens": [72, 105, 195, 169]}],
}
"""Valid bodies of each path that takes ``POST``; ``{ID}`` stands for the id of a stored response."""

QUERIES: list[tuple[str, str]] = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("GET", "/v1/responses/{ID}"),
    ("GET", "/v1/responses/{ID}?stream=true&starting_after=2"),
    ("GET", "/v1/responses/{ID}/input_items?limit=2&order=asc"),
    ("POST", "/v1/responses/{ID}/cancel"),
    ("DELETE", "/v1/responses/{ID}"),
    ("GET", "/openapi.json"),
    ("GET", "/metrics"),
    ("GET", "/state"),
]
"""Requests without a body."""
