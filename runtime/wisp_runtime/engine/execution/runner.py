"""Interface between the engine's loop and what runs its steps.

:class:`.cpu_runner.CpuRunner` computes each launch at once; :class:`.device_runner.DeviceRunner` launches on
a GPU. The forward pass of a step and its sampling are launched apart, because the parameters of sampling may
depend on tokens that the step before has yet to give (:func:`.sampler.has_pending_counts`).
"""

from __future__ import annotations

from typing import Protocol

from wisp_runtime.engine.scheduling.plan import Plan, SampledToken


class LaunchedStep(Protocol):
    """A step whose forward pass was launched.

    Attributes:
        plan: the chunks that it computes.
    """

    @property
    def plan(self) -> Plan: ...

    def sample(self) -> None:
        """Launch the sampling of the step's tokens.

        The tokens of the step before must be committed: penalties count what was generated so far.
        """
        ...

    def sampled_tokens(self) -> list[SampledToken]:
        """Wait for the step; return one token per chunk with logits, in the plan's order."""
        ...


class Runner(Protocol):
    """A model that runs plans.

    The order of calls: ``forward`` of step n + 1, ``sampled_tokens`` of step n and its commit, ``sample`` of
    step n + 1, ``forward`` of step n + 2.

    Attributes:
        overlaps: whether launches return before the device is done, so that a next step can be launched.
    """

    overlaps: bool

    def forward(self, plan: Plan) -> LaunchedStep:
        """Launch the forward pass of ``plan`` after all that was launched before.

        A chunk may begin with the token that the step before samples, unknown as it is.
        """
        ...


def run_step(runner: Runner, plan: Plan) -> list[SampledToken]:
    """Run the step of ``plan`` to its end; return one token per chunk with logits, in the plan's order."""
    step = runner.forward(plan)
    step.sample()
    return step.sampled_tokens()
