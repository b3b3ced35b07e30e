"""The chart's dashboard and alerts: what they ask for exists, and docs/metrics.md explains each alert.

That each query parses, and returns data, is what tests/cluster/prometheus asks a real Prometheus.
"""

import json
import re

import pytest
from rendered_chart import ROOT, needs_helm, rendered

from wisp_gateway.metrics import Metrics
from wisp_runtime.engine.transport.messages import Load
from wisp_runtime.server.metrics import Telemetry

ALERTS = "monitoring.alerts.enabled=true"
PAGE = ROOT / "docs/metrics.md"


def names(text):
    return {re.sub("_bucket$", "", name) for name in re.findall(r"wisp_[a-z_]+", text)}


def exported():
    telemetry = Telemetry("m", Load, lambda: (), 16)
    operator = (ROOT / "operator/wisp_operator/cluster/metrics.py").read_text()
    return names(telemetry.registry.render() + Metrics().render().decode() + operator)


def rules(*settings):
    [group] = rendered(ALERTS, *settings)["PrometheusRule/wisp-alerts"]["spec"]["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


@needs_helm
def test_the_dashboard_asks_for_metrics_that_exist():
    config = rendered("monitoring.dashboard=true")["ConfigMap/wisp-dashboard"]
    dashboard = json.loads(config["data"]["wisp.json"])
    asked = names(json.dumps(dashboard["panels"] + dashboard["templating"]["list"]))
    assert len(asked) > 40
    assert asked - exported() == set()


def test_no_two_panels_have_one_id_one_title_or_one_place():
    panels = json.loads((ROOT / "charts/wisp/files/dashboard.json").read_text())["panels"]
    for of_panel in ("id", "title", "gridPos"):
        assert len({str(panel[of_panel]) for panel in panels}) == len(panels)


@needs_helm
def test_alerts_are_made_on_request_alone():
    assert not [key for key in rendered("monitoring.dashboard=true") if key.startswith("PrometheusRule/")]
    labelled = rendered(ALERTS, 'monitoring.labels={"release": "prometheus"}')["PrometheusRule/wisp-alerts"]
    assert labelled["metadata"]["labels"]["release"] == "prometheus"


@needs_helm
def test_alerts_ask_for_metrics_that_exist_and_the_page_has_a_remedy_for_each():
    asked = set().union(*(names(rule["expr"]) for rule in rules().values()))
    assert asked - exported() == set()
    page = PAGE.read_text().partition("## Alerts")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(Wisp\w+)`", page, re.MULTILINE)) == set(rules())


@needs_helm
@pytest.mark.parametrize(
    ("setting", "alert", "field", "expect"),
    [
        ("wakeMinutes=3", "WispModelDoesNotWake", "for", "3m"),
        ("firstTokenSeconds=1.5", "WispFirstTokenSlow", "expr", "> 1.5"),
        ("refusedRequests=7", "WispLimitsRefuse", "expr", "> 7"),
    ],
)
def test_values_set_the_bounds_of_alerts(setting, alert, field, expect):
    assert rules(f"monitoring.alerts.{setting}")[alert][field].endswith(expect)
