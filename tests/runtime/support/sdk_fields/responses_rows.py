"""Fields of the official ``openai`` client's calls of Responses, each with its outcome here."""

from field_row import REFUSED, SAME, WORKS, Field
from openai_rows import CITY, FUNCTION, HINT

TOOLS = [{"type": "function", "strict": False, **FUNCTION}]
ENCRYPTED, LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
SHOWN = "shown again"
NO_TOOLS = "of tools that do not run here: there is never anything to include"
FORMAT = {"type": "json_schema", "name": "c", "schema": CITY}
UNPROMPTED = "does not change a prompt"
ANYWAY = "asks for what happens anyway"

PROMPT = (
    Field("conversation", "conv_1", REFUSED),
    Field("input", "hello", WORKS),
    Field("instructions", "Be brief.", WORKS),
    Field("model", "other", SAME, "each of the served names; another is a 404"),
    Field("previous_response_id", "resp_0", REFUSED, "an id that is not kept"),
    Field("reasoning", {"effort": "none"}, WORKS),
    Field("reasoning.effort", {"effort": "none"}, WORKS),
    Field("tools", TOOLS, WORKS),
    Field("tools", [{"type": "web_search"}], REFUSED),
    Field("tool_choice", "none", WORKS, beside={"tools": TOOLS}),
)
CREATE = (
    *PROMPT,
    Field("access_programs", {"cyber": "daybreak_blue"}, REFUSED),
    Field("background", True, WORKS),
    Field("background_options", {"completion_window": "2h"}, REFUSED),
    Field("context_management", [{"type": "compaction", "compact_threshold": 1000}], REFUSED),
    Field("image", {"context_compression": "enabled"}, REFUSED),
    Field("include", [LOGPROBS], WORKS),
    Field("include", [ENCRYPTED], WORKS),
    Field("include", ["file_search_call.results"], SAME, NO_TOOLS),
    Field("max_output_tokens", 3, WORKS),
    Field("max_tool_calls", 3, WORKS, f"{SHOWN}: it limits tools that a server runs"),
    Field("metadata", {"a": "b"}, WORKS, SHOWN),
    Field("moderation", {"model": "omni-moderation-latest"}, REFUSED),
    Field("parallel_tool_calls", False, WORKS, beside={"tools": TOOLS}),
    Field("prompt", {"id": "pmpt_1"}, REFUSED),
    Field("prompt_cache_key", "mine", WORKS, SHOWN),
    Field("prompt_cache_options", {"ttl": "30m"}, SAME, HINT),
    Field("prompt_cache_options.comparison_response_id", {"comparison_response_id": "resp_1"}, REFUSED),
    Field("prompt_cache_options.prewarm", {"prewarm": True}, REFUSED),
    Field("prompt_cache_options.mode", {"mode": "implicit"}, SAME, HINT),
    Field("prompt_cache_options.ttl", {"ttl": "30m"}, SAME, HINT),
    Field("prompt_cache_retention", "24h", SAME, HINT),
    Field("reasoning.context", {"context": "auto"}, SAME, ANYWAY),
    Field("reasoning.context", {"context": "all_turns"}, REFUSED),
    Field("reasoning.generate_summary", {"generate_summary": "auto"}, WORKS),
    Field("reasoning.mode", {"mode": "standard"}, SAME, ANYWAY),
    Field("reasoning.mode", {"mode": "pro"}, REFUSED),
    Field("reasoning.summary", {"summary": "auto"}, WORKS),
    Field("reasoning.summary", {"summary": "concise"}, REFUSED),
    Field("safety_identifier", "me", WORKS, SHOWN),
    Field("service_tier", "flex", SAME, "there is one tier, `default`"),
    Field("store", False, WORKS),
    Field("stream", True, WORKS),
    Field("stream_options", {"include_obfuscation": True}, SAME, "padding is never added", {"stream": True}),
    Field(
        "stream_options.include_obfuscation",
        {"include_obfuscation": True},
        SAME,
        "padding is never added",
        {"stream": True},
    ),
    Field("temperature", 0.5, WORKS),
    Field("text", {"format": FORMAT}, WORKS),
    Field("text.format", {"format": {"type": "json_object"}}, WORKS),
    Field("text.verbosity", {"verbosity": "low"}, REFUSED),
    Field("tool_choice", "required", WORKS, beside={"tools": TOOLS}),
    Field("tool_choice", {"type": "function", "name": "get_weather"}, WORKS, beside={"tools": TOOLS}),
    Field("top_logprobs", 2, WORKS, beside={"include": [LOGPROBS]}),
    Field("top_p", 0.5, WORKS),
    Field("truncation", "auto", WORKS),
    Field("user", "me", WORKS, SHOWN),
)
COUNT = (
    *PROMPT,
    Field("parallel_tool_calls", False, SAME, UNPROMPTED, {"tools": TOOLS}),
    Field("personality", "friendly", REFUSED),
    Field("reasoning.context", {"context": "auto"}, SAME, ANYWAY),
    Field("reasoning.generate_summary", {"generate_summary": "auto"}, SAME, UNPROMPTED),
    Field("reasoning.mode", {"mode": "standard"}, SAME, ANYWAY),
    Field("reasoning.summary", {"summary": "auto"}, SAME, UNPROMPTED),
    Field("text", {"format": FORMAT}, SAME, UNPROMPTED),
    Field("text.format", {"format": FORMAT}, SAME, UNPROMPTED),
    Field("text.verbosity", {"verbosity": "low"}, REFUSED),
    Field("truncation", "auto", SAME, "of what fits the context"),
)
RETRIEVE = (
    Field("include", [LOGPROBS], REFUSED, "set it when the response is created"),
    Field("include", ["file_search_call.results"], SAME, NO_TOOLS),
    Field("include_obfuscation", True, SAME, "padding is never added", {"stream": True}),
    Field("starting_after", 2, WORKS, beside={"stream": True}),
    Field("stream", True, WORKS, "of responses in the background"),
)
ITEMS = (
    Field("after", "none", REFUSED, "an id that is none of the items"),
    Field("include", [LOGPROBS], REFUSED, "set it when the response is created"),
    Field("include", ["file_search_call.results"], SAME, NO_TOOLS),
    Field("limit", 1, WORKS),
    Field("order", "asc", WORKS),
)
