"""vLLM's names beside ours: what its dashboards read is there, and means what it means there."""

import re
from pathlib import Path

import pytest
from fake_engine import END, tokens_of

from wisp_runtime.engine.transport.messages import Load, TokenEvent
from wisp_runtime.server.metrics import Telemetry

PAGE = Path(__file__).parents[3] / "docs/metrics.md"
CHAT = "/v1/chat/completions"
ASK = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def samples(text):
    """{name of a sample with its labels but the server's: value}."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    found = {}
    for name, labels, value in (re.fullmatch(r"([\w:]+)\{(.*)\} (\S+)", line).groups() for line in lines):
        own = [label for label in labels.split(",") if not label.startswith(("model_name=", "engine="))]
        found[name + ("{" + ",".join(own) + "}" if own else "")] = float(value)
    return found


def telemetry(load=None):
    return Telemetry("m", lambda: load or Load(), lambda: (), 16)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("n", "max_tokens"), [(1, 40), (2, 30)])
def test_a_finished_request_is_in_every_histogram_of_vllms_dashboards(api, server, stream, n, max_tokens):
    server.engine.script = lambda _: [*tokens_of("abc"), END]
    before = samples(api.get("/metrics").text)
    assert api.post(CHAT, json=ASK | {"stream": stream, "n": n, "max_tokens": max_tokens}).status_code == 200
    after = samples(api.get("/metrics").text)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    per_sequence = (
        *(
            "time_to_first_token_seconds",
            "request_time_per_output_token_seconds",
            "e2e_request_latency_seconds",
        ),
        *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
        *("request_inference_time_seconds", "request_prompt_tokens", "request_generation_tokens"),
        *("request_params_max_tokens", "request_prefill_kv_computed_tokens"),
    )
    assert {name: grown[f"vllm:{name}_count"] for name in per_sequence} == dict.fromkeys(per_sequence, n)
    assert grown["vllm:inter_token_latency_seconds_count"] == 3 * n  # a gap behind each token but the last
    assert grown["vllm:time_per_output_token_seconds_count"] == 3 * n
    assert grown["vllm:request_generation_tokens_sum"] == 4 * n
    assert grown["vllm:request_params_max_tokens_sum"] == max_tokens * n
    assert (grown["vllm:request_params_n_count"], grown["vllm:request_params_n_sum"]) == (1, n)
    assert grown["vllm:request_max_num_generation_tokens_sum"] == 4
    assert grown['vllm:request_success_total{finished_reason="stop"}'] == n


def test_queue_prefill_and_decode_add_up_to_the_request():
    metrics = telemetry()
    timer = metrics.start_timer(10, 40)
    start_s = timer._start_s
    timer.token(start_s + 3.0, TokenEvent("r", 1, cached_tokens=4, queued_s=2.0))
    timer.token(start_s + 3.5, TokenEvent("r", 2))
    timer.token(start_s + 4.5, TokenEvent("r", 3, "stop"))
    timer.finish(start_s + 4.5, "stop", 3)
    timer.close()
    found = samples(metrics.registry.render())
    sums = {
        name: found[f"vllm:{name}_sum"]
        for name in (
            *("request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds"),
            *("request_inference_time_seconds", "e2e_request_latency_seconds", "time_to_first_token_seconds"),
            *("inter_token_latency_seconds", "request_time_per_output_token_seconds"),
            "request_prefill_kv_computed_tokens",
        )
    }
    assert list(sums.values()) == pytest.approx([2.0, 1.0, 1.5, 2.5, 4.5, 3.0, 1.5, 0.75, 6])


def test_a_request_that_never_began_is_none_of_vllms_finished_ones():
    metrics = telemetry()
    for reason in ("overloaded", "expired", "refused", "error"):
        timer = metrics.start_timer(1, 1)
        timer.fail(reason)
        timer.close()
    found = samples(metrics.registry.render())
    ours = {name for name, value in found.items() if name.startswith("wisp_sequences_finished") and value}
    theirs = {name for name, value in found.items() if name.startswith("vllm:request_success") and value}
    assert len(ours) == 4
    assert theirs == {'vllm:request_success_total{finished_reason="error"}'}


def test_prompt_tokens_are_counted_by_source():
    found = samples(telemetry(Load(prompt_tokens_total=30, cached_tokens_total=12)).registry.render())
    assert found["vllm:prompt_tokens_total"] == found["vllm:prefix_cache_queries_total"] == 42
    assert found["vllm:prompt_tokens_cached_total"] == found["vllm:prefix_cache_hits_total"] == 12
    assert found['vllm:prompt_tokens_by_source_total{source="local_compute"}'] == 30
    assert found['vllm:prompt_tokens_by_source_total{source="local_cache_hit"}'] == 12


def test_the_page_lists_the_names_that_there_are():
    is_there, _, is_not = PAGE.read_text().partition("## Names of vLLM that are not here")
    written = set(re.findall(r"`vllm:(\w+)`", is_there))
    names = set(re.findall(r"^# TYPE vllm:(\w+) ", telemetry().registry.render(), re.MULTILINE))
    assert written == names
    assert set(re.findall(r"`vllm:(\w+)`", is_not)) & names == set()


def test_the_memory_plan_is_there_by_part(api, server):
    server.engine.info.ledger.update(weightsBytes=5, kvCacheBytes=7, availableBytes=100)
    found = samples(api.get("/metrics").text)
    assert found['wisp_memory_bytes{part="weights"}'] == 5
    assert found['wisp_memory_bytes{part="kv_cache"}'] == 7
    assert found["wisp_memory_available_bytes"] == 100
