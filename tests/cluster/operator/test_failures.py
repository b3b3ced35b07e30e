"""Everything that can be wrong with a model's pods ends as a named reason in status, never as a hang."""

import pytest
from kube import apply, condition, fake, get, has_state, kubectl, message, model, moments, status, until

LIMIT = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "default": {"memory": "48Mi"}}]},
}
SECRET_ENV = {"env": [{"name": "TOKEN", "secretRef": {"name": "absent", "key": "token"}}]}


def test_an_image_that_cannot_be_pulled_is_named_with_the_image(start_operator, namespace):
    operator = start_operator("one", "--runtime-image", "127.0.0.1:1/none:1")
    until(operator.leads)
    apply(model("chat", replicas=1), namespace=namespace)
    until(lambda: condition("chat", "Ready", namespace) == ("False", "ImagePullFailed"))
    assert "127.0.0.1:1/none:1" in message("chat", "Ready", namespace)
    until(lambda: condition("chat", "Degraded", namespace)[0] == "True")


def test_pods_that_a_quota_refuses_are_named(operator, namespace):
    kubectl("create", "quota", "none", "-n", namespace, "--hard=pods=0")
    apply(model("chat", replicas=1), namespace=namespace)
    until(lambda: condition("chat", "Ready", namespace) == ("False", "PodRefused"))
    assert "exceeded quota" in message("chat", "Ready", namespace)


def test_the_last_failure_stays_in_status_while_the_model_is_at_zero(operator, namespace):
    scaling = {"idleAfter": "2s"}
    apply(
        model("chat", scaling=scaling, runtime=fake(exit="1 ModelNotFound nothing there")),
        namespace=namespace,
    )
    until(lambda: status("chat", namespace).get("state") == "Asleep")
    with moments("inferencemodels", namespace) as seen:
        assert operator.ask(f"{namespace}/chat") == 204
        until(lambda: any(map(has_state("Failed"), seen)))
    until(lambda: not get("pods", namespace=namespace))  # nobody asks any more
    until(lambda: status("chat", namespace)["replicas"] == 0)
    failure = status("chat", namespace)["lastFailure"]
    assert (failure["reason"], failure["message"], failure["exitCode"]) == (
        "ModelNotFound",
        "nothing there",
        1,
    )
    until(lambda: ("Warning", "ModelNotFound") in events(namespace))


def events(namespace):
    return {(event["type"], event["reason"]) for event in get("events", namespace=namespace)}


def test_a_changed_spec_gets_a_fresh_start(operator, namespace):
    apply(model("chat", replicas=1, runtime=fake(exit="7")), namespace=namespace)
    until(lambda: status("chat", namespace).get("state") == "Failed")
    apply(model("chat", replicas=1, runtime=fake(ready_after="0s")), namespace=namespace)
    until(lambda: status("chat", namespace)["state"] == "Ready")
    assert "lastFailure" not in status("chat", namespace)
    assert condition("chat", "Degraded", namespace) == ("False", "AsExpected")


@pytest.mark.timeout(600)
def test_a_secret_that_comes_later_is_enough(operator, namespace):
    apply(model("chat", replicas=1, runtime=SECRET_ENV), namespace=namespace)
    until(lambda: condition("chat", "Ready", namespace) == ("False", "SecretMissing"), seconds=240)
    kubectl("create", "secret", "generic", "absent", "-n", namespace, "--from-literal=token=x")
    until(lambda: status("chat", namespace)["state"] == "Ready", seconds=240)


WRONG = [
    ("ModelNotFound", {"runtime": fake(exit="1 ModelNotFound no such directory")}, "no such directory"),
    ("DoesNotFit", {"runtime": fake(exit="3 DoesNotFit needs 17.1 GiB")}, "needs 17.1 GiB"),
    ("CrashBackOff", {"runtime": fake(exit="7")}, "exit code 7"),
    ("OOMKilled", {"runtime": fake(eat="true")}, "more memory than its limit of 48Mi"),
    ("SecretMissing", {"runtime": SECRET_ENV}, "Secret absent does not exist in namespace"),
    ("VolumeFailed", {"model": {"uri": "file:///no/such/folder"}}, "/no/such/folder"),
    (
        "StartupTimedOut",
        {"runtime": fake(ready_after="1h"), "rollout": {"startupDeadline": "4s"}},
        "within 4 s",
    ),
    ("Unschedulable", {"gpu": {"count": 1}}, "Insufficient nvidia.com/gpu"),
    (
        "Unschedulable",
        {"model": {"uri": "pvc://absent/model"}},
        'persistentvolumeclaim "absent" not found',
    ),
    (
        "ImagePullFailed",
        {"model": {"uri": "oci://127.0.0.1:1/weights:1"}},
        "Image 127.0.0.1:1/weights:1 could not",
    ),
]


@pytest.fixture(scope="module")
def failing(kept_operator, shared_namespace):
    """A model of each row, all at once: what takes a while, such as a kubelet's tries, is waited for once."""
    kept_operator()
    models = [model(f"chat-{n}", replicas=1, **spec) for n, (_, spec, _) in enumerate(WRONG)]
    apply(LIMIT, *models, namespace=shared_namespace)
    return shared_namespace


@pytest.mark.parametrize("row", range(len(WRONG)), ids=[f"{reason}-{says}" for reason, _, says in WRONG])
def test_what_is_wrong_with_a_pod_names_why_the_model_is_not_ready(operator, failing, row):
    reason, _, says = WRONG[row]

    def named():  # read once: a pod that starts again is Waking for a moment
        conditions = status(f"chat-{row}", failing).get("conditions", [])
        return next((c["message"] for c in conditions if (c["type"], c["reason"]) == ("Ready", reason)), "")

    assert says in until(named)
    print(kubectl("get", "imodel", f"chat-{row}", "-n", failing, "-o", "wide"))
