"""The chart's dashboard and alerts against a real Prometheus that scrapes a gateway and a pod under load."""

import json
import subprocess

import pytest
from boards import ROOT, binary, fetch, until

PANELS = json.loads((ROOT / "charts/wisp/files/dashboard.json").read_text())["panels"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel.get("targets", [])]
VARIABLES = {
    "$__rate_interval": "2m",
    "$__range": "2m",
    "$model": ".*",
    "$namespace": ".*",
}  # two minutes: the wake is in it
# Of vLLM's own board (examples/observability), as people have it.
VLLM = (
    'histogram_quantile(0.99, sum by(le) (rate(vllm:e2e_request_latency_seconds_bucket{engine="0"}[2m])))',
    'rate(vllm:prompt_tokens_total{model_name="tiny"}[2m])',
    'rate(vllm:generation_tokens_total{model_name="tiny"}[2m])',
    'histogram_quantile(0.5, sum by(le) (rate(vllm:inter_token_latency_seconds_bucket{engine="0"}[2m])))',
    'vllm:num_requests_running{model_name="tiny"}',
    'vllm:num_requests_waiting{model_name="tiny"}',
    'histogram_quantile(0.9, sum by(le) (rate(vllm:time_to_first_token_seconds_bucket{engine="0"}[2m])))',
    'vllm:kv_cache_usage_perc{model_name="tiny"}',
    'sum by(le) (increase(vllm:request_prompt_tokens_bucket{model_name="tiny"}[2m]))',
    'sum by(finished_reason) (increase(vllm:request_success_total{model_name="tiny"}[2m]))',
    'rate(vllm:request_queue_time_seconds_sum{model_name="tiny"}[2m])',
    'rate(vllm:request_prefill_time_seconds_sum{model_name="tiny"}[2m])',
    'rate(vllm:request_decode_time_seconds_sum{model_name="tiny"}[2m])',
    'rate(vllm:request_max_num_generation_tokens_sum{model_name="tiny"}[2m])',
    'vllm:prefix_cache_hits_total{engine="0"} / vllm:prefix_cache_queries_total{engine="0"}',
)


def expression(text):
    for name, value in VARIABLES.items():
        text = text.replace(name, value)
    return text


@pytest.mark.parametrize(
    ("title", "query"), QUERIES, ids=[f"{title}-{n}" for n, (title, _) in enumerate(QUERIES)]
)
def test_every_panel_shows_data(boards, title, query):
    until(lambda: boards.values(expression(query)), lambda: f"data of {title!r}: {expression(query)}")


def test_a_query_without_data_or_sense_would_show(boards):
    assert boards.values("wisp_no_such_metric") == []
    with pytest.raises(AssertionError, match="parse error"):
        boards.values("sum by (")


@pytest.mark.parametrize("query", VLLM)
def test_vllms_own_board_shows_data_of_a_pod(boards, query):
    until(lambda: boards.values(query), lambda: f"data of {query}")


def test_the_limit_of_a_key_shows_by_its_name(boards):
    refused = 'wisp_gateway_refusals_total{key="limited",reason="rate_limit_exceeded",type="requests"}'
    query = f"sum(rate({refused}[2m])) > 0"
    until(lambda: boards.values(query), lambda: f"data of {query}")


def test_every_alert_is_evaluated_without_an_error(boards):
    def evaluated():
        [group] = boards.get("rules")[1]["groups"]
        return len([rule for rule in group["rules"] if rule["health"] == "ok"]) == len(group["rules"]) >= 9

    until(evaluated, lambda: f"the rules: {boards.get('rules')}")


def test_promtool_finds_the_rules_sound(boards):
    checked = subprocess.run(
        [binary("promtool"), "check", "rules", "--lint=all", boards.folder / "rules.yaml"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("target", ["gateway", "pods", "operator"])
def test_promtool_can_read_what_each_target_shows(boards, target):
    until(lambda: boards.is_scraped(target), lambda: f"{target} in {boards.targets()}")
    [url] = [entry["scrapeUrl"] for entry in boards.targets() if entry["scrapePool"] == target]
    text = fetch(url)[1]
    checked = subprocess.run(
        [binary("promtool"), "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert checked.returncode in (0, 3), checked.stdout + checked.stderr  # 3: matters of style alone
    ours = [line for line in checked.stderr.splitlines() if not line.startswith("vllm:")]
    assert ours == []
