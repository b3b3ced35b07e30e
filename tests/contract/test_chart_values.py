"""The chart's values: few, each documented where it stands, and none that the schema does not know."""

import json
import re

import pytest
import yaml
from rendered_chart import CHART, helm, needs_helm, rendered

MAX_VALUES = 80
COMPONENTS = ("operator", "gateway", "crd", "nodecache", "dashboard", "alerts", "tokens", "wisp")


def leaves(schema, path=()):
    """Paths of the values that a schema knows, without the insides of free-form maps."""
    if not schema.get("properties") or (path and path[-1] == "resources"):
        return [path]
    return [leaf for key, below in schema["properties"].items() for leaf in leaves(below, (*path, key))]


def known():
    schema = json.loads((CHART / "values.schema.json").read_text())
    return [leaf for leaf in leaves(schema) if leaf != ("global",)]


def documented(text):
    """Paths of values.yaml, by whether the line above is a comment."""
    found, path, above = {}, [], ""
    for line in text.splitlines():
        if match := re.match(r"( *)([A-Za-z]+):", line):
            path = [*path[: len(match[1]) // 2], match[2]]
            found[tuple(path)] = above.strip().startswith("#")
        above = line
    return found


def test_there_are_few_values_and_all_are_documented_above_their_key():
    told = documented((CHART / "values.yaml").read_text())
    assert len(known()) <= MAX_VALUES
    assert [".".join(path) for path in known() if not told.get(path)] == []


def test_the_schema_knows_every_value_and_every_value_has_a_default():
    def defaults(document, path=()):
        if isinstance(document, dict) and path not in known():
            return [leaf for key, below in document.items() for leaf in defaults(below, (*path, key))]
        return [path]

    assert sorted(defaults(yaml.safe_load((CHART / "values.yaml").read_text()))) == sorted(known())


@needs_helm
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("gateway.replica=3", "replica"),
        ("nonsense=1", "nonsense"),
        ("images.operator.name=x", "name"),
        ("gateway.replicas=two", "replicas"),
        ("gateway.replicas=-1", "replicas"),
        ("gateway.autoscaling.minReplicas=0", "minReplicas"),
        (
            "gateway.autoscaling.enabled=true,gateway.autoscaling.maxReplicas=1",
            "gateway.autoscaling.maxReplicas",
        ),
        ("watchNamespaces=a", "watchNamespaces"),
        ("watchNamespaces={A}", "watchNamespaces"),
        ("images.pullPolicy=Sometimes", "pullPolicy"),
        ("images.runtime.digest=sha256:12", "digest"),
        ("images.runtime.tag=a tag", "tag"),
        ("runtime.userId=0", "userId"),  # never root
        ("runtime.hubEndpoint=hub", "hubEndpoint"),
        ("gateway.service.port=70000", "port"),
        ("gateway.service.type=ExternalName", "type"),
        ("operator.leaseSeconds=1", "leaseSeconds"),
        ("nodeCache.path=cache", "path"),
        ("nodeCache.path=/a b", "path"),
        ("policy.fileDirectories={srv}", "fileDirectories"),
        ("gateway.modelSecrets.team=keys", "modelSecrets"),
        ("policy.env={A B}", "env"),
        ("policy.podLabels={a b}", "podLabels"),
        ("policy.priorityClasses=gold", "priorityClasses"),
        ("priorityClass.value=2000000000", "value"),  # the cluster's own
        ("gateway.logFormat=xml", "logFormat"),
        ("gateway.resources.request.cpu=1", "request"),
        ("runtime.memory=lots", "memory"),
        ("runtime.ephemeralStorage=lots", "ephemeralStorage"),
    ],
)
def test_an_invalid_value_is_refused_by_name(setting, message):
    done = helm("template", "wisp", str(CHART), "--set", setting, check=False)
    assert done.returncode != 0
    assert message in done.stderr


def test_templates_are_named_by_component_and_kind():
    names = [path.name for path in (CHART / "templates").glob("*.yaml")]
    assert [name for name in names if not re.fullmatch(rf"({'|'.join(COMPONENTS)})-[a-z]+\.yaml", name)] == []


def test_the_chart_and_the_packages_have_one_version():
    version = re.search(r'^version = "(.+)"$', (CHART.parents[1] / "pyproject.toml").read_text(), re.M)[1]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


@needs_helm
def test_an_autoscaler_of_the_gateway_is_the_only_one_that_sets_its_number():
    found = rendered("gateway.autoscaling.enabled=true", "gateway.autoscaling.minReplicas=1")
    scaler = found["HorizontalPodAutoscaler/wisp-gateway"]["spec"]
    assert scaler["scaleTargetRef"]["name"] == found["Deployment/wisp-gateway"]["metadata"]["name"]
    assert scaler["metrics"][0]["resource"]["target"] == {"type": "AverageValue", "averageValue": "500m"}
    assert "replicas" not in found["Deployment/wisp-gateway"]["spec"]
    # One unavailable pod is allowed, so the budget keeps no node from draining, however few there are.
    assert found["PodDisruptionBudget/wisp-gateway"]["spec"]["maxUnavailable"] == 1
    assert "HorizontalPodAutoscaler/wisp-gateway" not in rendered()


@needs_helm
@pytest.mark.parametrize(
    ("endpoint", "port"), [("http://c.m:4318", 4318), ("https://c.m/x", 443), ("http://c.m", 80), ("", None)]
)
def test_the_gateway_may_reach_the_collector_of_traces(endpoint, port):
    egress = rendered(f'tracing.endpoint="{endpoint}"')["NetworkPolicy/wisp-gateway"]["spec"]["egress"]
    assert [rule["ports"][0]["port"] for rule in egress if "to" not in rule] == [*filter(None, [port]), 53]


@needs_helm
def test_traces_and_the_form_of_logs_reach_the_operator_the_gateway_and_the_pods():
    found = rendered('tracing.endpoint="http://c:4318"', 'operator.logFormat="text"')
    for name, expected in {
        "operator": {"--log-format=text", "--runtime-log-format=json", "--otlp-endpoint=http://c:4318"},
        "gateway": {"--log-format=json", "--otlp-endpoint=http://c:4318"},
    }.items():
        [container] = found[f"Deployment/wisp-{name}"]["spec"]["template"]["spec"]["containers"]
        assert expected <= set(container["args"])
