"""Fields of requests that no type of an official client has: vLLM's, and llama.cpp's server's."""

from field_row import SAME, WORKS, Field, extensions
from openai_rows import CITY, HINT, NOT_KEPT, OF_ACCOUNTS, TIER

SCHEMA = {"type": "object"}
THINKS = "of a model that thinks"
NO_BACKEND = "there is one backend"
NEITHER = "this server's caches and slots are its own"

BOTH = extensions(
    Field("allowed_token_ids", [5, 31], WORKS),
    Field("bad_words", ["ab"], WORKS),
    Field("cache_prompt", False, SAME, NEITHER),
    Field("cache_salt", "secret", WORKS),
    Field("guided_decoding_backend", "guidance", SAME, NO_BACKEND),
    Field("guided_whitespace_pattern", "[ ]?", WORKS, beside={"extra_body": {"guided_json": SCHEMA}}),
    Field("guided_choice", ["a", "b"], WORKS),
    Field("guided_grammar", 'start: "a"', WORKS),
    Field("guided_json", SCHEMA, WORKS),
    Field("guided_regex", "a+", WORKS),
    Field("id_slot", 1, SAME, NEITHER),
    Field("ignore_eos", True, WORKS, beside={"max_tokens": 20}),
    Field("include_stop_str_in_output", True, WORKS, beside={"stop": "lo"}),
    Field("min_p", 0.1, WORKS),
    Field("min_tokens", 6, WORKS),
    Field("prompt_logprobs", 1, WORKS),
    Field("repetition_detection", {"max_pattern_size": 1, "min_count": 2}, WORKS),
    Field("repetition_penalty", 1.5, WORKS),
    Field("request_id", "mine", WORKS),
    Field("return_token_ids", True, WORKS),
    Field("session_id", "mine", SAME, "the gateway routes by it"),
    Field("skip_special_tokens", False, WORKS, beside={"stop": "w"}),
    Field("spaces_between_special_tokens", False, SAME, "nothing here puts blanks between tokens"),
    Field("stop_token_ids", [ord("o")], WORKS),
    Field("structured_outputs", {"regex": "a+"}, WORKS),
    Field("top_k", 5, WORKS),
    Field("truncate_prompt_tokens", 1, WORKS),
    Field("truncation_side", "right", WORKS, beside={"extra_body": {"truncate_prompt_tokens": 1}}),
)
CHAT = (
    *BOTH,
    *extensions(
        Field("add_generation_prompt", False, WORKS),
        Field("add_special_tokens", True, WORKS),
        Field("chat_template_kwargs", {"enable_thinking": False}, WORKS),
        Field(
            "continue_final_message",
            True,
            WORKS,
            beside={"messages": [{"role": "assistant", "content": "a"}]},
        ),
        Field("documents", [{"text": "ab"}], WORKS, "of a template that reads them"),
        Field("include_reasoning", False, WORKS, THINKS),
        Field("return_tokens_as_token_ids", True, WORKS, beside={"logprobs": True}),
        Field("thinking_token_budget", 16, WORKS, THINKS),
    ),
)
COMPLETIONS = (
    *BOTH,
    *extensions(
        Field("add_special_tokens", False, WORKS),
        Field("metadata", {"a": "b"}, SAME, NOT_KEPT),
        Field("prompt_cache_key", "mine", SAME, HINT),
        Field("prompt_cache_options", {"ttl": "30m"}, SAME, HINT),
        Field("prompt_cache_retention", "24h", SAME, HINT),
        Field("safety_identifier", "me", SAME, OF_ACCOUNTS),
        Field("service_tier", "flex", SAME, TIER),
        Field("store", True, SAME, NOT_KEPT),
        Field("return_tokens_as_token_ids", True, WORKS, beside={"logprobs": 1}),
        Field("response_format", {"type": "json_object"}, WORKS),
    ),
)
RESPONSES = extensions(
    Field("cache_salt", "secret", WORKS),
    Field("chat_template_kwargs", {"enable_thinking": False}, WORKS),
    Field("client_metadata", {"a": "b"}, SAME, "the client's own"),
    Field("frequency_penalty", 0.5, WORKS),
    Field("ignore_eos", True, WORKS, beside={"max_output_tokens": 40}),
    Field("include_stop_str_in_output", True, WORKS, beside={"extra_body": {"stop": "lo"}}),
    Field("logit_bias", {"5": 2}, WORKS),
    Field("min_p", 0.1, WORKS),
    Field("presence_penalty", 0.5, WORKS),
    Field("repetition_detection", {"max_pattern_size": 1, "min_count": 2}, WORKS),
    Field("repetition_penalty", 1.5, WORKS),
    Field("seed", 7, WORKS),
    Field("session_id", "mine", SAME, "the gateway routes by it"),
    Field("skip_special_tokens", False, WORKS),
    Field("stop", "lo", WORKS),
    Field("stop_token_ids", [ord("o")], WORKS),
    Field("structured_outputs", {"regex": "a+"}, WORKS),
    Field("thinking_token_budget", 16, WORKS, THINKS),
    Field("top_k", 5, WORKS),
)
EMBEDDINGS = extensions(
    Field("add_special_tokens", False, WORKS),
    Field("normalize", False, WORKS),
    Field("truncate_prompt_tokens", 1, WORKS),
)
KEEPS = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
MESSAGES = extensions(
    Field("context_management", KEEPS, WORKS, "edits nothing, and says so"),
    Field("output_format", {"type": "json_schema", "schema": CITY}, WORKS),
    Field("temperature", 0.5, WORKS),
    Field("top_k", 5, WORKS),
    Field("top_p", 0.5, WORKS),
)
