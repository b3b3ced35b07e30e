"""Everything that can be wrong with a model's pods ends as a named reason in status, never as a hang."""

import pytest
from kube import apply, condition, fake, get, kubectl, message, model, status, until

LIMIT = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "small"},
    "spec": {"limits": [{"type": "Container", "default": {"memory": "48Mi"}}]},
}
SECRET_ENV = {"env": [{"name": "TOKEN", "secretRef": {"name": "absent", "key": "token"}}]}


@pytest.mark.parametrize(
    ("reason", "spec", "says"),
    [
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
    ],
)
def test_what_is_wrong_with_a_pod_names_why_the_model_is_not_ready(operator, namespace, reason, spec, says):
    apply(LIMIT, model("chat", replicas=1, **spec), namespace=namespace)

    def named():  # read once: a pod that starts again is Waking for a moment
        conditions = status("chat", namespace).get("conditions", [])
        return next((c["message"] for c in conditions if (c["type"], c["reason"]) == ("Ready", reason)), "")

    assert says in until(named, seconds=60)
    print(kubectl("get", "imodel", "-n", namespace, "-o", "wide"))


def test_an_image_that_cannot_be_pulled_is_named_with_the_image(start_operator, namespace):
    operator = start_operator("one", "--runtime-image", "127.0.0.1:1/none:1")
    until(operator.leads)
    apply(model("chat", replicas=1), namespace=namespace)
    until(lambda: condition("chat", "Ready", namespace) == ("False", "ImagePullFailed"))
    assert "127.0.0.1:1/none:1" in message("chat", "Ready", namespace)
    assert condition("chat", "Degraded", namespace)[0] == "True"


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
    operator.ask(f"{namespace}/chat")
    until(lambda: status("chat", namespace)["state"] == "Failed")
    until(lambda: not get("pods", namespace=namespace))  # nobody asks any more
    until(lambda: status("chat", namespace)["replicas"] == 0)
    failure = status("chat", namespace)["lastFailure"]
    assert (failure["reason"], failure["message"], failure["exitCode"]) == (
        "ModelNotFound",
        "nothing there",
        1,
    )
    warnings = [e["reason"] for e in get("events", namespace=namespace) if e["type"] == "Warning"]
    assert "ModelNotFound" in warnings


def test_a_changed_spec_gets_a_fresh_start(operator, namespace):
    apply(model("chat", replicas=1, runtime=fake(exit="7")), namespace=namespace)
    until(lambda: status("chat", namespace).get("state") == "Failed")
    apply(model("chat", replicas=1, runtime=fake(ready_after="0s")), namespace=namespace)
    until(lambda: status("chat", namespace)["state"] == "Ready", seconds=40)
    assert "lastFailure" not in status("chat", namespace)
    assert condition("chat", "Degraded", namespace) == ("False", "AsExpected")


def test_a_secret_that_comes_later_is_enough(operator, namespace):
    apply(model("chat", replicas=1, runtime=SECRET_ENV), namespace=namespace)
    until(lambda: condition("chat", "Ready", namespace) == ("False", "SecretMissing"), seconds=240)
    kubectl("create", "secret", "generic", "absent", "-n", namespace, "--from-literal=token=x")
    until(lambda: status("chat", namespace)["state"] == "Ready", seconds=180)
