"""Fields that a body has in another API, by endpoint, and what they are called here.

The Responses API has its own table beside its model; fields of other servers are in
:mod:`wisp_runtime.server.parsing.refusals`.
"""

from __future__ import annotations

from wisp_runtime.server.parsing.refusals import refusals

USER_MESSAGE = '[{"role": "user", "content": "…"}]'

_AS_MESSAGES = f"Send it as 'messages': {USER_MESSAGE}."
_ELSEWHERE = "Anthropic's API has no such field; /v1/chat/completions has it."
_NO_STORE = "Send the complete conversation as 'messages', or use /v1/responses."
_PLAIN = "Write it before the text of 'prompt', or send 'messages' to /v1/chat/completions."

CHAT = {
    **refusals(_AS_MESSAGES, input=[], prompt=[]),
    **refusals("Send it as the first of 'messages', with the role 'system'.", system=[], instructions=[]),
    **refusals("Set stop.", stop_sequences=[[]]),
    **refusals("Set reasoning_effort; 'none' turns thinking off.", thinking=[], reasoning=[]),
    **refusals("Set reasoning_effort and response_format.", output_config=[{}]),
    **refusals("Set response_format.", text=[{}], output_format=[]),
    **refusals("Set max_tokens.", max_output_tokens=[], max_tokens_to_sample=[]),
    **refusals(_NO_STORE, previous_response_id=[], conversation=[]),
    **refusals("Set logprobs and top_logprobs.", include=[[]]),
    **refusals("Set truncate_prompt_tokens.", truncation="disabled"),
    **refusals("Responses in the background are at /v1/responses.", background=False),
    **refusals("Connect to MCP servers in the client and send their tools as 'tools'.", mcp_servers=[[]]),
    **refusals("Leave it out: prefixes are cached unmarked.", cache_control=[]),
}
COMPLETION = {
    **refusals("Send them to /v1/chat/completions, or a text as 'prompt'.", messages=[]),
    **refusals("Send it as 'prompt'.", input=[]),
    **refusals(_PLAIN, system=[], instructions=[]),
    **refusals("Set stop.", stop_sequences=[[]]),
    **refusals("Set max_tokens.", max_completion_tokens=[], max_output_tokens=[], max_tokens_to_sample=[]),
    **refusals("Set logprobs to the number of alternatives.", top_logprobs=0),
    **refusals("Thinking is chat's: send 'messages' to /v1/chat/completions.", reasoning_effort=[]),
}
MESSAGES = {
    **refusals(_AS_MESSAGES, input=[], prompt=[]),
    **refusals("Set system.", instructions=[]),
    **refusals("Set stop_sequences.", stop=[[]]),
    **refusals("Set max_tokens.", max_completion_tokens=[], max_output_tokens=[], max_tokens_to_sample=[]),
    **refusals("Set output_config.format.", response_format={"type": "text"}, text=[{}]),
    **refusals("Set output_config.effort.", reasoning_effort=[], reasoning=[{}]),
    **refusals("Send them as 'tools', each with name, description and input_schema.", functions=[[]]),
    **refusals("Set tool_choice.", function_call=["none", "auto"]),
    **refusals("Set tool_choice.disable_parallel_tool_use.", parallel_tool_calls=True),
    **refusals("A message is one answer: send several requests.", n=1),
    **refusals("A stream has its usage anyway.", stream_options={"include_usage": True}),
    **refusals("Set metadata.user_id.", user=[]),
    **refusals(_ELSEWHERE, seed=[], presence_penalty=0, frequency_penalty=0, logit_bias=[{}], logprobs=False),
    **refusals(_ELSEWHERE, top_logprobs=0, min_p=0, repetition_penalty=1, min_tokens=0),
    **refusals("Send the complete conversation as 'messages'.", previous_response_id=[]),
    **refusals("It is a header: leave it out of the body.", anthropic_version=[], anthropic_beta=[[]]),
}
TOKENIZE = refusals("Send it as 'prompt', or a chat as 'messages'.", text=[], input=[])
DETOKENIZE = refusals("Send them as 'tokens'.", token_ids=[], ids=[], input_ids=[])
EMBEDDING = refusals("Send it as 'input'.", prompt=[], text=[], texts=[], documents=[])
