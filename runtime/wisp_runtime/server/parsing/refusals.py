"""Fields of OpenAI, vLLM, SGLang and llama.cpp that this server does not implement.

One with a value that asks for what happens anyway is dropped, so that clients may send their defaults; any
other is refused by name, with a remedy. A field that a request's model declares is left to the model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from wisp_runtime.server.api.errors import unsupported


class Refusal(NamedTuple):
    """A field that is refused.

    Attributes:
        neutral: values that ask for what happens anyway, besides null.
        remedy: sentence that follows "X is not supported here."
        code: code of the error.
    """

    neutral: tuple[Any, ...]
    remedy: str
    code: str = "unsupported_parameter"

    def check(self, name: str, value: Any) -> None:
        """Check that the field ``name`` asks for what happens anyway.

        Raises:
            ApiError: 400, naming the field.
        """
        if value is not None and value not in self.neutral:
            raise unsupported(name, self.remedy, self.code)


def refusals(remedy: str, **neutral: Any) -> dict[str, Refusal]:
    """Return refusals that share a remedy, by field; a list gives several neutral values."""
    pairs = ((name, values if isinstance(values, list) else [values]) for name, values in neutral.items())
    return {name: Refusal(tuple(values), remedy) for name, values in pairs}


_TEXT_ONLY = "Answers are text only."
_SAMPLERS = "Sample with temperature, top_k, top_p, min_p and the penalties."
_GRAMMARS = "Describe the format with response_format or structured_outputs."
_TOOLS = "Send tools to /v1/chat/completions."
_NO_CODE = "A request brings no code; use logit_bias, allowed_token_ids, bad_words or structured_outputs."
_THINKING = "Thinking has a field of its own; include_reasoning: false leaves it out."
_ONE_SERVER = "One server computes a request here; leave it out."

OPENAI = {
    **refusals(_TOOLS, tools=[[]], tool_choice=["none", "auto"], parallel_tool_calls=[True, False]),
    **refusals("It is deprecated: send the functions as 'tools'.", functions=[[]]),
    **refusals("It is deprecated: use 'tools' and 'tool_choice'.", function_call=["none", "auto"]),
    **refusals(_TEXT_ONLY, modalities=[["text"]], audio=[]),
    **refusals("Leave it out.", prediction=[]),
    **refusals("Ask for it in a message.", verbosity="medium"),
    **refusals("This server reads nothing from the web.", web_search_options=[]),
    **refusals("Moderate prompts and answers in the client.", moderation=[]),
    **refusals("Models here continue text; they do not fill gaps.", suffix=""),
    **refusals("Set n and choose yourself; /v1/completions has best_of.", best_of=1),
}
VLLM = {
    **refusals(
        "Set n and temperature: answers are sampled, not searched.",
        use_beam_search=False,
        length_penalty=1.0,
        early_stopping=False,
    ),
    **refusals(_NO_CODE, logits_processors=[[]], vllm_xargs=[{}], extra_args=[{}]),
    **refusals("Send text or token ids.", prompt_embeds=[]),
    **refusals(
        "Messages are text here.", mm_processor_kwargs=[{}], media_io_kwargs=[{}], return_mm_kwargs=True
    ),
    **refusals("The priority of a request is that of its key at the gateway.", priority=0),
    **refusals("Add the last message to the answer in the client.", echo=False),
    **refusals(
        "The model's own template is used: set chat_template_kwargs, or send its text to /v1/completions.",
        chat_template=[],
    ),
    **refusals("Answers are text; set return_token_ids for the ids beside it.", detokenize=True),
    **refusals("Ask for the best alternatives: logprobs, top_logprobs.", logprob_token_ids=[]),
    **refusals(
        "prompt_logprobs reports all positions of the prompt.",
        prompt_logprob_token_ids=[],
        prompt_logprob_start=0,
    ),
    **refusals("Log-probabilities have one format here.", flat_logprobs=False),
    **refusals("Each token is sent as it comes; join chunks in the client.", stream_interval=1),
    **refusals("Texts are not marked here.", watermarking=False),
    **refusals("Set return_token_ids.", return_prompt_text=False, return_token_offsets=False),
    **refusals("Tokens are sampled here, not prescribed.", trace_decode_token_ids=[]),
    **refusals("Experts are not reported.", routed_experts_prompt_start=0),
    **refusals(_ONE_SERVER, kv_transfer_params=[{}], ec_transfer_params=[{}]),
    **refusals("Limit the answer with max_tokens.", thinking_token_budget=-1),
    **refusals("The text is returned as the model writes it.", include_reasoning=True),
}
SGLANG = {
    **refusals(_GRAMMARS, regex=[], ebnf=[], structural_tag=[]),
    **refusals("End at strings (stop) or at tokens (stop_token_ids).", stop_regex=[[]]),
    **refusals("Set include_stop_str_in_output.", no_stop_trim=False),
    **refusals("Set min_tokens.", min_new_tokens=0),
    **refusals("Set max_tokens.", max_new_tokens=[]),
    **refusals(_NO_CODE, custom_logit_processor=[], custom_params=[{}]),
    **refusals("This server has one model and no adapters.", lora_path=[]),
    **refusals("Send the complete conversation; its prefix is found in the cache.", session_params=[{}]),
    **refusals("Send token ids as a completion's prompt.", input_ids=[]),
    **refusals("Set request_id.", rid=[]),
    **refusals("Set cache_salt.", extra_key=[]),
    **refusals("Set return_token_ids.", return_prompt_token_ids=False),
    **refusals(
        "Only tokens and their log-probabilities are reported.",
        return_hidden_states=False,
        return_routed_experts=False,
        return_meta_info=False,
    ),
    **refusals("usage has the number of cached tokens.", return_cached_tokens_details=False),
    **refusals(
        _ONE_SERVER,
        bootstrap_host=[],
        bootstrap_port=[],
        bootstrap_room=[],
        routed_dp_rank=[],
        disagg_prefill_dp_rank=[],
        data_parallel_rank=[],
    ),
    **refusals(_THINKING, separate_reasoning=True, stream_reasoning=True),
    **refusals(_TEXT_ONLY, images_config=[{}], use_audio_in_video=False),
}
LLAMA_CPP = {
    **refusals(
        _SAMPLERS,
        typical_p=1.0,
        typ_p=1.0,
        tfs_z=1.0,
        top_a=0.0,
        top_n_sigma=-1.0,
        xtc_probability=0.0,
        dynatemp_range=0.0,
        dry_multiplier=0.0,
        mirostat=0,
        adaptive_target=-1.0,
        min_keep=0,
        samplers=[],
    ),
    **refusals("Set repetition_penalty, which counts all tokens.", repeat_penalty=1.0),
    **refusals("Set max_tokens.", n_predict=-1, max_length=[]),
    **refusals("Set n.", n_cmpl=1),
    **refusals("Set logprobs and top_logprobs.", n_probs=0, post_sampling_probs=False),
    **refusals(_GRAMMARS, grammar="", json_schema=[]),
    **refusals("Grammars apply from the first token on.", grammar_lazy=False, grammar_triggers=[[]]),
    **refusals("Set max_tokens; a client that leaves ends its request.", t_max_predict_ms=-1, n_indent=0),
    **refusals("A prompt that is too long is refused; see truncate_prompt_tokens.", n_keep=0, n_discard=0),
    **refusals("/metrics has times.", timings_per_token=False, return_progress=False, verbose=False),
    **refusals("Set return_token_ids.", return_tokens=False),
    **refusals("A response has all its fields.", response_fields=[[]]),
    **refusals("This server has one model and no adapters.", lora=[[]]),
    **refusals("Messages are text here.", image_data=[[]]),
    **refusals(
        "Send the text before and after the gap as one prompt.",
        input_prefix="",
        input_suffix="",
        input_extra=[[]],
    ),
    **refusals(_THINKING, reasoning_format=["auto", "deepseek"]),
    **refusals("Calls are found in the answer of a request that brings tools.", parse_tool_calls=True),
}
REFUSALS = {**OPENAI, **VLLM, **SGLANG, **LLAMA_CPP}

IGNORED = {
    "repeat_last_n": "repeat_penalty",
    "xtc_threshold": "xtc_probability",
    "dynatemp_exponent": "dynatemp_range",
    "dry_base": "dry_multiplier",
    "dry_allowed_length": "dry_multiplier",
    "dry_penalty_last_n": "dry_multiplier",
    "dry_sequence_breakers": "dry_multiplier",
    "mirostat_tau": "mirostat",
    "mirostat_eta": "mirostat",
    "adaptive_decay": "adaptive_target",
}
"""Fields that mean something only beside another, which is refused: field → the other."""


def without_neutral(body: dict[str, Any], refused: Mapping[str, Refusal]) -> dict[str, Any]:
    """Return ``body`` without the ``refused`` fields that ask for what happens anyway.

    Raises:
        ApiError: 400, naming one that asks for more.
    """
    for name, refusal in refused.items():
        refusal.check(name, body.get(name))
    return {name: value for name, value in body.items() if name not in refused}


def without_refused(body: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Return ``body`` without the neutral fields that no model knows.

    Args:
        body: fields of a request.
        known: fields that its model declares.

    Raises:
        ApiError: 400, naming a field that would change the output and is not implemented.
    """
    others = [name for name in body if name not in known]
    for name in others:
        if name in REFUSALS:
            REFUSALS[name].check(name, body[name])
    dropped = {name for name in others if name in REFUSALS or name in IGNORED}
    return {name: value for name, value in body.items() if name not in dropped}
