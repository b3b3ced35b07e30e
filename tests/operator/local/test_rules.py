"""The pure rules of the local cluster as tables: templates, probes, back-off, rollouts, demand."""

from pathlib import Path

import pytest

from wisp_operator.core.demand import STALE_AFTER_S, DemandAggregator
from wisp_operator.local import pod_template
from wisp_operator.local.processes import backoff, rollout
from wisp_operator.local.processes.health import Health
from wisp_operator.local.processes.rollout import DesiredPods, PodView


def deployment(args=(), env=(), volumes=(), mounts=(), **container):
    container = {"args": list(args), "env": list(env), "volumeMounts": list(mounts), **container}
    pod = {"containers": [container], "volumes": list(volumes)}
    return {"metadata": {"name": "tiny", "namespace": "a"}, "spec": {"template": {"spec": pod}}}


WEIGHTS = {"name": "weights", "hostPath": {"path": "/srv/models/tiny"}}
SCRATCH = {"name": "scratch", "emptyDir": {}}
AT_MODELS = {"name": "weights", "mountPath": "/models/tiny"}
AT_TMP = {"name": "scratch", "mountPath": "/tmp"}


@pytest.mark.parametrize(
    ("argument", "becomes"),
    [
        ("/models/tiny", "/srv/models/tiny"),
        ("/models/tiny/", "/srv/models/tiny/"),
        ("/models/tiny/a.safetensors", "/srv/models/tiny/a.safetensors"),
        ("/models/tiny-2", "/models/tiny-2"),  # a longer name is another path
        ("file:///models/tiny", "file:///srv/models/tiny"),
        ("--model=/models/tiny", "--model=/srv/models/tiny"),
        ("/tmp/x", "/home/pod/tmp/x"),  # an emptyDir is a directory of the pod's own
        ("/dev/termination-log", "/home/pod/termination-log"),
        ("hf://org/name", "hf://org/name"),
    ],
)
def test_paths_of_the_container_become_paths_of_this_machine(argument, becomes):
    read = pod_template.read(deployment([argument], volumes=[WEIGHTS, SCRATCH], mounts=[AT_MODELS, AT_TMP]))
    argv = read.argv(41000, Path("/home/pod"), Path("/home/pod/termination-log"), "auto")
    assert argv[:2] == ["wisp-runtime", becomes]


def test_an_escaped_dollar_is_one_dollar_of_a_process():
    read = pod_template.read(
        deployment(["s3://b/$$(KEY)"], env=[{"name": "HTTPS_PROXY", "value": "http://u:$$@proxy"}])
    )
    assert read.command[-1] == "s3://b/$(KEY)"
    assert read.environment == {"HTTPS_PROXY": "http://u:$@proxy"}


@pytest.mark.parametrize(
    ("asked", "device", "gets"),
    [
        ("cuda", "auto", "auto"),  # the manifest wants a GPU: take one if there is one
        ("cpu", "auto", "cpu"),
        ("cuda", "cpu", "cpu"),
        ("cpu", "cuda", "cuda"),
    ],
)
def test_the_device_is_the_manifests_unless_the_user_says_otherwise(asked, device, gets):
    argv = pod_template.read(deployment(["serve", "--device", asked])).argv(
        1, Path("/p"), Path("/p/t"), device
    )
    assert argv[argv.index("--device") + 1] == gets


def test_the_address_is_the_loopback_wherever_the_manifest_listens():
    read = pod_template.read(deployment(["serve", "--host", "0.0.0.0", "--port=8000", "--threads", "2"]))
    argv = read.argv(41000, Path("/p"), Path("/p/t"), "auto")
    assert argv == ["wisp-runtime", "serve", "--threads", "2", "--host", "127.0.0.1", "--port", "41000"]


def test_variables_are_values_and_fields_and_secrets_stay_with_the_shell():
    env = [
        {"name": "HOME", "value": "/tmp"},
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "HF_TOKEN"}}},
    ]
    read = pod_template.read(deployment(env=env, volumes=[SCRATCH], mounts=[AT_TMP]))
    assert read.variables(Path("/home/pod"), Path("/t")) == {"HOME": "/home/pod/tmp", "POD": "tiny"}


def test_a_volume_that_only_a_cluster_has_is_refused_by_name():
    claim = {"name": "weights", "persistentVolumeClaim": {"claimName": "x"}}
    with pytest.raises(pod_template.NotLocal, match=r"'weights' is a persistentVolumeClaim"):
        pod_template.read(deployment(volumes=[claim], mounts=[AT_MODELS]))


PROBES = {
    "startupProbe": {"httpGet": {"path": "/readyz"}, "periodSeconds": 1, "failureThreshold": 10},
    "readinessProbe": {"httpGet": {"path": "/readyz"}, "periodSeconds": 1, "failureThreshold": 3},
    "livenessProbe": {"httpGet": {"path": "/livez"}, "periodSeconds": 5, "failureThreshold": 6},
}


@pytest.mark.parametrize(
    ("answers", "ready", "failed"),
    [
        ([("startup", False, 1)], False, None),
        ([("startup", True, 1)], True, None),  # both ask /readyz: one answer is enough
        ([("startup", True, 1), ("readiness", True, 1)], True, None),
        ([("readiness", True, 1)], False, None),  # counts only once started
        ([("startup", False, 10)], False, "did not start within 10 s"),
        ([("startup", True, 1), ("readiness", True, 1), ("readiness", False, 2)], True, None),
        ([("startup", True, 1), ("readiness", True, 1), ("readiness", False, 4)], False, None),
        ([("startup", True, 1), ("liveness", False, 30)], True, None),
        ([("startup", True, 1), ("liveness", False, 31)], True, "/livez gave no good answer for 30 s"),
        ([("startup", True, 1), ("liveness", True, 30), ("liveness", False, 31)], True, None),
    ],
)
def test_probes_count_as_the_kubelet_counts_them(answers, ready, failed):
    health = Health(pod_template.read(deployment(**PROBES)), now=0.0)
    for kind, succeeded, at in answers:
        health.record(kind, succeeded, float(at))
    assert health.is_ready is ready
    assert (health.failed is None) if failed is None else (failed in health.failed)


def test_a_startup_probe_that_asks_something_else_does_not_make_a_process_ready():
    probes = PROBES | {"startupProbe": {"httpGet": {"path": "/livez"}, "periodSeconds": 1}}
    health = Health(pod_template.read(deployment(**probes)), now=0.0)
    health.record("startup", True, 1.0)
    assert (health.is_started, health.is_ready) == (True, False)


@pytest.mark.parametrize(
    ("crashes", "was_ready", "delay_s"),
    [
        (1, True, 0.0),  # requests may wait for it
        (1, False, 1.0),
        (2, True, 2.0),
        (3, False, 4.0),
        (6, False, 32.0),
        (7, False, 60.0),
        (5000, False, 60.0),  # no overflow, however long it goes on
    ],
)
def test_a_process_that_keeps_ending_is_tried_less_and_less_often(crashes, was_ready, delay_s):
    assert backoff.delay_s(crashes, was_ready) == delay_s


def test_a_minute_of_readiness_forgives_earlier_crashes():
    assert backoff.crashes_in_a_row(5, ready_s=59) == 6
    assert backoff.crashes_in_a_row(5, ready_s=60) == 1


def pods(text):
    """``Rn`` is a ready pod of the new template, ``.o`` one not ready of the old; oldest first."""
    return [
        PodView(f"p{index}", {"n": "new", "o": "old"}[item[1]], item[0] == "R", float(index))
        for index, item in enumerate(text.split())
    ]


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable", "given", "start", "stop"),
    [
        (1, 1, 0, "", 1, []),
        (2, 1, 0, "Rn", 1, []),
        (1, 1, 0, "Rn", 0, []),
        (0, 1, 0, "Rn .n Ro", 0, ["p0", "p1", "p2"]),
        (1, 1, 0, "Rn .n", 0, ["p1"]),  # the one not ready goes
        (1, 1, 0, "Rn Rn", 0, ["p1"]),  # the younger goes
        (1, 1, 0, "Ro", 1, []),  # the new one first, beside the old
        (1, 1, 0, "Ro .n", 0, []),  # the old serves until the new is ready
        (1, 1, 0, "Ro Rn", 0, ["p0"]),
        (1, 0, 1, "Ro", 0, ["p0"]),  # no surge allowed: the old first
        (1, 0, 1, "", 1, []),
        (1, 1, 0, ".o", 1, ["p0"]),  # an old one may stop that is not ready
        (3, 1, 0, "Ro Ro Ro", 1, []),
        (3, 1, 0, "Ro Ro Ro Rn", 0, ["p2"]),
    ],
)
def test_pods_converge_by_the_rules_of_a_rolling_update(replicas, surge, unavailable, given, start, stop):
    assert rollout.plan(DesiredPods("new", replicas, surge, unavailable), pods(given)) == (start, stop)


def report(gateway, **counts):
    return {"gateway": gateway, "models": {"a/tiny": {"arrivals": 1, "idleSeconds": 0.0, **counts}}}


def test_demand_is_the_sum_over_gateways_and_the_shortest_idle_time():
    book = DemandAggregator()
    book.record(report("one", waiting=2, running=1, idleSeconds=0.0), now=100.0)
    book.record(report("two", waiting=1, running=0, idleSeconds=None), now=101.0)
    total = book.total("a/tiny", now=103.0)
    assert (total.waiting, total.running, total.arrivals, total.idle_s) == (3, 1, 2, 3.0)


def test_a_gateway_that_fell_silent_no_longer_counts():
    book = DemandAggregator()
    book.record(report("one", waiting=2, running=1), now=100.0)
    assert book.total("a/tiny", now=100.0 + STALE_AFTER_S).waiting == 0
    assert book.total("b/other", now=100.0).idle_s is None


@pytest.mark.parametrize(
    "document", [{}, {"gateway": "x"}, {"gateway": "x", "models": {"a/b": {"waiting": "many"}}}]
)
def test_a_report_that_is_not_one_is_refused(document):
    with pytest.raises(ValueError, match=r"many|not a demand report"):
        DemandAggregator().record(document, now=0.0)
