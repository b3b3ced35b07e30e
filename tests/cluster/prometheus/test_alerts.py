"""Each of the chart's alerts fires when it should, and not before: promtool runs unit tests of rules."""

import subprocess

import pytest
import yaml
from boards import binary
from rendered_chart import rendered

MODEL = 'model="default/m"'
WAITING, PODS = f"wisp_gateway_requests_waiting{{{MODEL}}}", f"wisp_gateway_pods_ready{{{MODEL}}}"
FAILED = f'wisp_gateway_model_state{{{MODEL},state="Failed"}}'
FIRST_TOKEN = f"wisp_gateway_time_to_first_token_seconds_bucket{{{MODEL}"
KV, SEQUENCES = (
    'wisp_kv_cache_usage_ratio{model_name="m",pod="p"}',
    'wisp_sequences_waiting{model_name="m",pod="p"}',
)
REFUSED = 'wisp_gateway_refusals_total{key="alice",reason="rate_limit_exceeded",type="requests"}'
SLOW = {f'{FIRST_TOKEN},le="{le}"}}': f"0+{n}x60" for le, n in (("30", 1), ("60", 30), ("+Inf", 30))}
FAST = {f'{FIRST_TOKEN},le="{le}"}}': f"0+{n}x60" for le, n in (("30", 30), ("60", 30), ("+Inf", 30))}


@pytest.mark.parametrize(
    ("alert", "at", "series", "fires"),
    [
        ("WispModelFailed", "6m", {FAILED: "1x60"}, True),
        ("WispModelFailed", "4m", {FAILED: "1x60"}, False),  # it may come back by itself
        ("WispModelFailed", "10m", {FAILED.replace("Failed", "Asleep"): "1x60"}, False),
        ("WispModelDoesNotWake", "11m", {WAITING: "3x60", PODS: "0x60"}, True),
        ("WispModelDoesNotWake", "9m", {WAITING: "3x60", PODS: "0x60"}, False),
        ("WispModelDoesNotWake", "20m", {WAITING: "3x60", PODS: "1x60"}, False),
        ("WispModelDoesNotWake", "20m", {WAITING: "0x60", PODS: "0x60"}, False),  # asleep is healthy
        ("WispQueueGrows", "30m", {WAITING: "0+2x60", PODS: "1x60"}, True),
        ("WispQueueGrows", "30m", {WAITING: "50x60", PODS: "1x60"}, False),  # long, and no longer
        ("WispQueueGrows", "30m", {WAITING: "100-2x60", PODS: "1x60"}, False),
        ("WispFirstTokenSlow", "25m", SLOW, True),
        ("WispFirstTokenSlow", "25m", FAST, False),
        ("WispGatewayWithoutSnapshot", "3m", {"wisp_gateway_has_snapshot": "0x60"}, True),
        ("WispGatewayWithoutSnapshot", "3m", {"wisp_gateway_has_snapshot": "1x60"}, False),
        ("WispGatewayWithoutOperator", "6m", {"wisp_gateway_operator_away": "1x60"}, True),
        ("WispGatewayWithoutOperator", "6m", {"wisp_gateway_operator_away": "0x60"}, False),
        ("WispKvCacheFull", "11m", {KV: "0.97x60", SEQUENCES: "2x60"}, True),
        (
            "WispKvCacheFull",
            "11m",
            {KV: "0.97x60", SEQUENCES: "0x60"},
            False,
        ),  # full of prefixes: as it should be
        ("WispLimitsRefuse", "20m", {REFUSED: "0+20x60"}, True),
        ("WispLimitsRefuse", "20m", {REFUSED: "0+5x60"}, False),
        ("WispLimitsRefuse", "20m", {REFUSED.replace("rate_limit_exceeded", "queue_full"): "0+20x60"}, False),
        ("WispNoLeader", "3m", {'wisp_operator_is_leader{pod="a"}': "0x60"}, True),
        (
            *("WispNoLeader", "3m"),
            *(
                {'wisp_operator_is_leader{pod="a"}': "0x60", 'wisp_operator_is_leader{pod="b"}': "1x60"},
                False,
            ),
        ),
    ],
)
def test_an_alert_fires_when_it_should(tmp_path, alert, at, series, fires):
    spec = rendered("monitoring.alerts.enabled=true")["PrometheusRule/wisp-alerts"]["spec"]
    [group] = spec["groups"]
    [rule] = [rule for rule in group["rules"] if rule["alert"] == alert]
    bare = {"alert": alert, "expr": rule["expr"], "for": rule["for"]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "wisp", "rules": [bare]}]}))
    counted = {"expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})', "eval_time": at}
    counted["exp_samples"] = [{"labels": "{}", "value": 1}] if fires else []
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": inputs, "promql_expr_test": [counted]}
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]})
    )
    done = subprocess.run(
        [binary("promtool"), "test", "rules", tmp_path / "test.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
