"""Fit of a model at zero: what a pod measured, or an earlier leader computed, stays until more is known."""

from dataclasses import replace

import pytest
from recording_cluster import UNKNOWN, World

from wisp_operator.cluster.reconcile.fitting import Verdict
from wisp_operator.core.fit.verdict import FitReport
from wisp_operator.core.runtime_state import Ledger, RuntimeState

ON_CPU = Verdict(replace(UNKNOWN.report, gpu="CPU"))
COMPUTED = Verdict(FitReport("Fits", "Fits.", gpu="L4", basis="computed from the weights headers"))


def fit_of(world):
    return world.status["fit"]["verdict"], world.status["fit"]["gpu"]


@pytest.mark.parametrize("before", [ON_CPU, UNKNOWN])
def test_what_a_pod_measured_outlives_it_and_its_leader_and_names_the_same_device(before):
    world = World({"replicas": 1})
    world.verdict = before
    world.reconcile()
    world.pod("chat-1")
    world.polled["chat-1"] = RuntimeState(device="cpu", ledger=Ledger(fits=True, message="Fits."))
    world.reconcile()
    assert fit_of(world) == ("Fits", "CPU")
    world.model["spec"]["suspend"] = True
    world.indexes["Pod"].clear()
    world.reconcile()
    assert fit_of(world) == ("Fits", "CPU")
    world.reconciler.reset()
    world.reconcile()
    assert fit_of(world) == ("Fits", "CPU")


def test_what_was_computed_is_not_forgotten_by_a_new_leader_whose_hub_is_away():
    world = World()
    world.verdict = COMPUTED
    world.reconcile()
    world.verdict = UNKNOWN
    world.reconciler.reset()
    world.reconcile()
    assert fit_of(world) == ("Fits", "L4")
    world.model["metadata"]["generation"] = 2
    world.reconcile()
    assert world.status["fit"]["verdict"] == "Unknown"
