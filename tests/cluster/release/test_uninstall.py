"""The last of the release's tests: uninstalling leaves CRD and keys, says so, and deletes no model."""

from contextlib import suppress

import pytest
from kube import apply, get, kubectl, model, status, until
from namespaces import make_namespace, put_weights, remove_namespace
from release import CLIENTS, KEEP, NAME, SYSTEM, everything, helm, install
from tiny import write_tiny

NAMESPACE = "wisp-stays"


@pytest.mark.skipif(KEEP, reason="KEEP=1 keeps the release")
def test_uninstalling_leaves_nothing_but_the_crd_and_the_keys_and_says_so(release, clients, tmp_path):
    write_tiny(tmp_path / "tiny")
    make_namespace(NAMESPACE)
    put_weights(NAMESPACE, tiny=tmp_path / "tiny")
    apply(model("chat", model={"uri": "pvc://weights/tiny"}, replicas=1), namespace=NAMESPACE)
    until(lambda: status("chat", NAMESPACE).get("state") == "Ready")

    said = helm("uninstall", NAME, "--namespace", SYSTEM, "--wait")
    assert "[CustomResourceDefinition] inferencemodels.wisp.dev" in said
    assert "kept" in said
    assert [
        pod for pod in get("pods", namespace=NAMESPACE) if "chat" in pod["metadata"]["name"]
    ]  # the model goes on
    kubectl("delete", "imodel", "chat", "-n", NAMESPACE, "--timeout=120s")
    until(lambda: get("pods", namespace=NAMESPACE) == [])
    remove_namespace(CLIENTS, *namespaces_of_tests())
    crd = "/CustomResourceDefinition.apiextensions.k8s.io/v1/inferencemodels.wisp.dev"
    keys = f"{SYSTEM}/Secret.v1/{NAME}-tokens"  # by which pods that stay know the next release
    left = set()

    def is_over():
        with suppress(AssertionError):  # a kind that goes between listing and reading
            left.clear()
            left.update(everything() - release.before)
        return left == {crd, keys}

    with suppress(AssertionError):  # what is on its way out may take a moment
        until(is_over, every=2)
    assert sorted(left) == sorted([crd, keys])
    print(said)


def namespaces_of_tests():
    names = kubectl("get", "namespaces", "-o", "name").split()
    return [
        name.partition("/")[2] for name in names if name.startswith("namespace/wisp-") and SYSTEM not in name
    ]


@pytest.mark.skipif(KEEP, reason="KEEP=1 keeps the release")
def test_a_second_installation_takes_the_crd_that_was_left(release):
    notes = install()
    assert "kubectl apply" in notes
    helm("uninstall", NAME, "--namespace", SYSTEM, "--wait")
