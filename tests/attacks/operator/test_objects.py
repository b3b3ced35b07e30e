"""Objects of the cluster that a tenant may write as it likes (A1, A2, cluster bug 5)."""

import time

from attack import attack
from operator_target import ATTACKER


def spec(**more):
    return {"model": {"uri": "pvc://weights/m"}, **more}


@attack("new")
def test_two_hundred_models_at_once(target):
    manifests = [target.manifest(f"m{number}", **spec()) for number in range(200)]
    target.server.apply(*manifests, namespace=ATTACKER)
    time.sleep(3)


@attack("new")
def test_a_model_made_and_deleted_twenty_times(target):
    for _ in range(20):
        target.model("phoenix", **spec())
        target.server.kubectl("delete", "inferencemodel", "phoenix", "-n", ATTACKER, "--wait=false")


@attack("new")
def test_annotations_of_a_hundred_kilobytes(target):
    manifest = target.manifest("wordy", **spec())
    manifest["metadata"]["annotations"] = {f"example.com/{n}": "x" * 11_000 for n in range(10)}
    target.server.apply(manifest, namespace=ATTACKER)


@attack("new")
def test_a_pod_with_three_hundred_containers_that_fail(target):
    names = [f"c{number}" for number in range(300)]
    labels = {"wisp.dev/model": "crowded"}
    containers = [{"name": name, "image": "x"} for name in names]
    pod = {"metadata": {"name": "crowded", "labels": labels}, "spec": {"containers": containers}}
    target.api("POST", f"/api/v1/namespaces/{ATTACKER}/pods", pod)
    target.model("crowded", **spec())
    dead = {"exitCode": 137, "reason": "Error", "message": "x" * 2000, "signal": 9}
    statuses = [
        {
            "name": name,
            "ready": False,
            "restartCount": 1 << 30,
            "image": "x",
            "imageID": "",
            "state": {"terminated": dead},
            "lastState": {"terminated": dead},
        }
        for name in names
    ]
    status = {"status": {"phase": "Failed", "message": "y" * 10_000, "containerStatuses": statuses}}
    path = f"/api/v1/namespaces/{ATTACKER}/pods/crowded/status"
    target.api("PATCH", path, status, "merge-patch+json")
    time.sleep(1)


@attack("A1")
def test_objects_of_every_kind_that_carry_a_models_label(target):
    labels = {"wisp.dev/model": "good"}
    service = {"metadata": {"name": "decoy", "labels": labels}, "spec": {"ports": [{"port": 1}]}}
    target.api("POST", f"/api/v1/namespaces/{ATTACKER}/services", service)
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": "good-cache", "labels": labels}, "spec": claim}
    target.api("POST", f"/api/v1/namespaces/{ATTACKER}/persistentvolumeclaims", body)
    target.model("good", **spec())
    time.sleep(1)


@attack("use 7")
def test_fifty_models_that_claim_the_neighbours_name(target):
    manifests = [
        target.manifest(f"claim{number}", model={"uri": "pvc://weights/m", "servedName": "good"})
        for number in range(50)
    ]
    target.server.apply(*manifests, namespace=ATTACKER)
    time.sleep(2)
