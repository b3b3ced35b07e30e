"""Fields of other servers: each is read, means nothing alone, or is refused by its name."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import BaseModel

from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.parsing.body import parse_body
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.parsing.completion_request import CompletionRequest
from wisp_runtime.server.parsing.refusals import IGNORED, REFUSALS

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
COMPLETE = {"model": "tiny", "prompt": "hi"}
SHOWN_BY_EXAMPLE = {"model", "messages"}
MODELS = {ChatRequest: CHAT, CompletionRequest: COMPLETE}

# Fields of requests by the sources of 2026-11-23: vLLM (protocol.py of both endpoints, SamplingParams),
# SGLang (protocol.py), llama.cpp's server (server-schema.cpp).
VLLM_CHAT = """
    add_generation_prompt chat_template chat_template_kwargs continue_final_message documents echo
"""
VLLM = """
    add_special_tokens allowed_token_ids bad_words cache_salt detokenize ec_transfer_params extra_args
    flat_logprobs guided_choice guided_grammar guided_json guided_regex ignore_eos include_reasoning
    include_stop_str_in_output kv_transfer_params length_penalty logits_processors logprob_token_ids
    media_io_kwargs min_p min_tokens mm_processor_kwargs priority prompt_embeds prompt_logprob_start
    prompt_logprob_token_ids prompt_logprobs repetition_detection repetition_penalty request_id
    return_mm_kwargs return_prompt_text return_token_ids return_token_offsets return_tokens_as_token_ids
    routed_experts_prompt_start session_id skip_special_tokens spaces_between_special_tokens
    stop_token_ids stream_interval structured_outputs thinking_token_budget top_k trace_decode_token_ids
    truncate_prompt_tokens truncation_side use_beam_search vllm_xargs watermarking
"""
SGLANG = """
    bootstrap_host bootstrap_port bootstrap_room custom_logit_processor custom_params data_parallel_rank
    disagg_prefill_dp_rank ebnf extra_key images_config input_ids lora_path no_stop_trim regex
    return_cached_tokens_details return_hidden_states return_meta_info return_prompt_token_ids
    return_routed_experts rid routed_dp_rank separate_reasoning session_params stop_regex stream_reasoning
    structural_tag use_audio_in_video
"""
LLAMA_CPP = """
    adaptive_decay adaptive_target cache_prompt dry_allowed_length dry_base dry_multiplier
    dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range grammar grammar_lazy
    grammar_triggers id_slot image_data json_schema lora min_keep mirostat mirostat_eta mirostat_tau
    n_cmpl n_discard n_indent n_keep n_predict n_probs parse_tool_calls post_sampling_probs
    reasoning_format repeat_last_n repeat_penalty response_fields return_progress return_tokens samplers
    t_max_predict_ms tfs_z timings_per_token top_n_sigma typical_p verbose xtc_probability xtc_threshold
"""


def _openai(params) -> Iterator[str]:
    yield from params.CompletionCreateParamsBase.__annotations__
    yield from params.CompletionCreateParamsStreaming.__annotations__


def _outcome(model: type[BaseModel], name: str, value: object) -> str:
    """Return what becomes of a body with a field: read, dropped, or the error's code."""
    try:
        parse_body(json.dumps(MODELS[model] | {name: value}).encode(), model)
    except ApiError as error:
        is_named = (error.param or "").split(".")[0] == name and name in error.message
        return str(error.code) if error.status == 400 and is_named else repr(error)
    return "read" if name in model.model_fields else "dropped"


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (ChatRequest, set(_openai(chat_params))),
        (CompletionRequest, set(_openai(completion_params))),
        (ChatRequest, set(VLLM_CHAT.split())),
        *[(model, set(source.split())) for model in MODELS for source in (VLLM, SGLANG, LLAMA_CPP)],
    ],
)
def test_no_field_of_a_known_server_is_unknown(model, names):
    unknown = {name for name in names if _outcome(model, name, [0.5]) == "unknown_parameter"}
    assert not unknown


@pytest.mark.parametrize("name", sorted(REFUSALS))
def test_a_field_that_is_not_implemented_is_refused_by_name_unless_it_asks_for_the_default(name):
    readers = {model for model in MODELS if name in model.model_fields}
    assert len(readers) < len(MODELS), f"{name} is read at both endpoints: take it from REFUSALS"
    for model in set(MODELS) - readers:
        assert _outcome(model, name, {"a": 1}) == "unsupported_parameter"
        for value in (None, *REFUSALS[name].neutral):
            assert _outcome(model, name, value) == "dropped"


@pytest.mark.parametrize(("name", "other"), sorted(IGNORED.items()))
def test_a_field_that_means_nothing_alone_is_dropped_and_the_other_is_refused(name, other):
    for model in MODELS:
        assert _outcome(model, name, 0.5) == "dropped"
        assert _outcome(model, other, 0.5) == "unsupported_parameter"


def test_the_page_names_every_field():
    page = (Path(__file__).parents[4] / "docs/runtime.md").read_text()
    fields = {*REFUSALS, *IGNORED, *(name for model in MODELS for name in model.model_fields)}
    assert {name for name in fields - SHOWN_BY_EXAMPLE if f"`{name}" not in page} == set()
