"""Fields of the official ``anthropic`` client's calls, also of its beta, each with its outcome here."""

from field_row import REFUSED, SAME, WORKS, Field
from openai_rows import CITY

TOOLS = [{"name": "get_weather", "input_schema": CITY}]
FORMAT = {"type": "json_schema", "schema": CITY}
MARK = {"type": "ephemeral"}
UNMARKED = "prefixes are cached unmarked"
OF_ACCOUNTS = "of accounts that are not here"
KEEPS = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
CLEARS = {"edits": [{"type": "clear_tool_uses_20250919"}]}
SERVER = {"type": "url", "name": "a", "url": "https://example.org/"}

PROMPT = (
    Field("cache_control", MARK, SAME, UNMARKED),
    Field("cache_control.type", MARK, SAME, UNMARKED),
    Field("cache_control.ttl", {**MARK, "ttl": "1h"}, SAME, UNMARKED),
    Field("messages", [{"role": "user", "content": "hello"}], WORKS),
    Field("model", "other", SAME, "each of the served names; another is a 404"),
    Field("speed", "fast", REFUSED),
    Field("speed", "standard", SAME, "asks for what happens anyway"),
    Field("system", "Be brief.", WORKS),
    Field("thinking", {"type": "disabled"}, WORKS),
    Field("tool_choice", {"type": "none"}, WORKS, beside={"tools": TOOLS}),
    Field("tools", TOOLS, WORKS),
    Field("tools", [{"type": "bash_20250124", "name": "bash"}], REFUSED),
    Field("user_profile_id", "p", SAME, OF_ACCOUNTS),
    Field("workspace_id", "w", SAME, OF_ACCOUNTS),
)
MESSAGES = (
    *PROMPT,
    Field("container", "c", REFUSED),
    Field("diagnostics", {"previous_message_id": None}, WORKS),
    Field("diagnostics.previous_message_id", {"previous_message_id": "msg_1"}, WORKS),
    Field("inference_geo", "eu", REFUSED),
    Field("inference_geo", "global", SAME, "asks for what happens anyway"),
    Field("max_tokens", 3, WORKS),
    Field("metadata", {"user_id": "me"}, SAME, OF_ACCOUNTS),
    Field("metadata.user_id", {"user_id": "me"}, SAME, OF_ACCOUNTS),
    Field("output_config", {"effort": "low"}, WORKS),
    Field("output_config.effort", {"effort": "low"}, WORKS),
    Field("output_config.format", {"format": FORMAT}, WORKS),
    Field("service_tier", "standard_only", SAME, "there is one tier"),
    Field("stop_sequences", ["lo"], WORKS),
    Field("stream", True, WORKS),
    Field("thinking", {"type": "enabled", "budget_tokens": 16}, WORKS),
    Field("thinking", {"type": "adaptive", "display": "omitted"}, WORKS),
    Field("tool_choice", {"type": "any"}, WORKS, beside={"tools": TOOLS}),
    Field("tool_choice", {"type": "tool", "name": "get_weather"}, WORKS, beside={"tools": TOOLS}),
)
EFFORT = (
    Field("output_config", {"effort": "low"}, SAME, "does not change this prompt"),
    Field("output_config.effort", {"effort": "low"}, SAME, "does not change this prompt"),
    Field("output_config.format", {"format": FORMAT}, SAME, "does not change a prompt"),
)
COUNT = (*PROMPT, *EFFORT)
BETA = (
    Field("betas", ["x-2025-01-01"], SAME, "names of betas are a header; their fields work or are refused"),
    Field("billing_policy", {"type": "billing_policy", "bill_to": "self"}, REFUSED),
    Field("compaction", {"type": "summarize"}, REFUSED),
    Field("context_management", CLEARS, REFUSED),
    Field("output_config.task_budget", {"task_budget": {"type": "tokens", "total": 20_000}}, REFUSED),
    Field("mcp_servers", [SERVER], REFUSED),
)
BETA_MESSAGES = (
    *MESSAGES,
    *BETA,
    Field("context_management", KEEPS, WORKS, "edits nothing, and says so"),
    Field("context_management.edits", KEEPS, WORKS, "edits nothing, and says so"),
    Field("fallback_credit_token", "t", REFUSED),
    Field("fallbacks", [{"model": "other"}], REFUSED),
    Field("thread", {"type": "create"}, REFUSED),
)
BETA_COUNT = (
    *COUNT,
    *BETA,
    Field("context_management", KEEPS, SAME, "edits nothing"),
    Field("context_management.edits", KEEPS, SAME, "edits nothing"),
)
MODELS = (
    Field("after_id", "tiny", WORKS),
    Field("before_id", "other", WORKS),
    Field("lifecycle", ["retired"], WORKS),
    Field("limit", 1, WORKS),
    Field("workspace_id", "w", SAME, OF_ACCOUNTS),
)
MODEL = (Field("workspace_id", "w", SAME, OF_ACCOUNTS),)
