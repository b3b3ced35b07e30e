"""Fields of the official ``openai`` client's calls besides those of Responses, each with its outcome here."""

from dataclasses import replace

from field_row import REFUSED, SAME, WORKS, Field

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "parameters": CITY}
TOOLS = [{"type": "function", "function": FUNCTION}]
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {
        "mode": "required",
        "tools": [{"type": "function", "function": {"name": "get_weather"}}],
    },
}
NOT_KEPT = "chats are not kept; `/v1/responses` are"
OF_ACCOUNTS = "names an end user: of accounts that are not here"
HINT = "a hint: prefixes are found without it"
TIER = "there is one tier"

SAMPLING = (
    Field("frequency_penalty", 0.5, WORKS),
    Field("logit_bias", {"5": 2}, WORKS),
    Field("max_tokens", 3, WORKS),
    Field("model", "other", SAME, "each of the served names; another is a 404"),
    Field("n", 2, WORKS),
    Field("presence_penalty", 0.5, WORKS),
    Field("seed", 7, WORKS),
    Field("stop", "lo", WORKS, "a text"),
    Field("stop", ["w", "lo"], WORKS, "several"),
    Field("stream", True, WORKS),
    Field("stream_options", {"include_usage": True}, WORKS, beside={"stream": True}),
    Field("stream_options.include_usage", {"include_usage": True}, WORKS, beside={"stream": True}),
    Field(
        "stream_options.include_obfuscation",
        {"include_obfuscation": True},
        SAME,
        "padding against eavesdroppers, which is never added",
        {"stream": True},
    ),
    Field("temperature", 0.5, WORKS),
    Field("top_p", 0.5, WORKS),
    Field("user", "me", SAME, OF_ACCOUNTS),
)
CHAT = (
    *SAMPLING,
    Field("audio", {"voice": "ash", "format": "wav"}, REFUSED),
    Field("function_call", {"name": "f"}, REFUSED),
    Field("functions", [FUNCTION], REFUSED),
    Field("logprobs", True, WORKS),
    Field("max_completion_tokens", 3, WORKS),
    Field("messages", [{"role": "user", "content": "ho"}], WORKS),
    Field("metadata", {"a": "b"}, SAME, NOT_KEPT),
    Field("modalities", ["text", "audio"], REFUSED),
    Field("modalities", ["text"], SAME, "asks for what happens anyway"),
    Field("moderation", {"model": "omni-moderation-latest"}, REFUSED),
    Field("parallel_tool_calls", False, WORKS, beside={"tools": TOOLS}),
    Field("prediction", {"type": "content", "content": "Hello"}, REFUSED),
    Field("prompt_cache_key", "mine", SAME, HINT),
    Field("prompt_cache_options", {"ttl": "30m"}, SAME, HINT),
    Field("prompt_cache_options.mode", {"mode": "implicit"}, SAME, HINT),
    Field("prompt_cache_options.ttl", {"ttl": "30m"}, SAME, HINT),
    Field("prompt_cache_retention", "24h", SAME, HINT),
    Field("reasoning_effort", "low", WORKS, "of a model that thinks"),
    Field("response_format", {"type": "json_object"}, WORKS),
    Field("response_format", {"type": "json_schema", "json_schema": {"name": "c", "schema": CITY}}, WORKS),
    Field("safety_identifier", "me", SAME, OF_ACCOUNTS),
    Field("service_tier", "flex", SAME, TIER),
    Field("store", True, SAME, NOT_KEPT),
    Field("tool_choice", "none", WORKS, beside={"tools": TOOLS}),
    Field("tool_choice", "required", WORKS, beside={"tools": TOOLS}),
    Field(
        "tool_choice",
        {"type": "function", "function": {"name": "get_weather"}},
        WORKS,
        beside={"tools": TOOLS},
    ),
    Field("tool_choice", ALLOWED, WORKS, beside={"tools": TOOLS}),
    Field("tools", TOOLS, WORKS),
    Field("tools", [{"type": "custom", "custom": {"name": "f"}}], REFUSED),
    Field("top_logprobs", 2, WORKS, beside={"logprobs": True}),
    Field("verbosity", "low", REFUSED),
    Field("web_search_options", {"search_context_size": "low"}, REFUSED),
)
COMPLETIONS = (
    *(replace(row, is_strict=not row.name.startswith("stream")) for row in SAMPLING),
    Field("best_of", 3, WORKS),
    Field("echo", True, WORKS),
    Field("logprobs", 2, WORKS),
    Field("prompt", "ho", WORKS),
    Field("prompt", [1, 2], WORKS, "token ids"),
    Field("suffix", "x", REFUSED),
)
EMBEDDINGS = (
    Field("dimensions", 4, WORKS),
    Field("encoding_format", "base64", WORKS, is_strict=False),
    Field("input", ["hi", "ho"], WORKS),
    Field("model", "other", SAME, "each of the served names; another is a 404"),
    Field("user", "me", SAME, OF_ACCOUNTS),
)
