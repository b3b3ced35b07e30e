"""Fields of a manifest that ``wisp up`` does not follow are named in its log."""

import pytest

from wisp_operator import api
from wisp_operator.local.ignored_fields import differences

SECRET = {"name": "hub", "key": "TOKEN"}


def model(**spec):
    body = {"model": {"uri": "hf://org/name"}, "gpu": {"count": 1}, **spec}
    metadata = {"name": "m"}
    return api.parse({"apiVersion": api.API_VERSION, "kind": api.KIND, "metadata": metadata, "spec": body})


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, []),
        ({"cache": {"type": "None"}}, []),  # a folder of the pod's own
        ({"cache": {"type": "PVC"}}, ["only a cluster follows spec.cache.type; ignored here"]),
        ({"cache": {"prefetch": True}}, ["only a cluster follows spec.cache.prefetch; ignored here"]),
        (
            {"gpu": {"count": 1, "product": ["NVIDIA-H200"], "memory": "80Gi"}},
            ["only a cluster follows spec.gpu.product, spec.gpu.memory; ignored here"],
        ),
        (
            {
                "model": {"uri": "hf://org/name", "secretRef": {"name": "hub"}},
                "runtime": {"env": [{"name": "A", "value": "b"}, {"name": "TOKEN", "secretRef": SECRET}]},
            },
            [
                "this machine has no Secrets for spec.model.secretRef, spec.runtime.env[1].secretRef: "
                "variables of the same names count that the shell of wisp up has"
            ],
        ),
    ],
)
def test_fields_that_one_machine_does_not_follow_are_named(spec, named):
    assert differences(model(**spec)) == named
