"""Profiles of models with more than attention and dense MLPs: each op is timed, in a phase of its own."""

import inspect
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_engine_model import write_tiny

sys.path.append(str(Path(__file__).parents[1] / "engine" / "hybrids"))
from test_hybrids import FAMILIES

from wisp_runtime.bench.profile.breakdown import show, summarize
from wisp_runtime.bench.profile.svg import COLOURS
from wisp_runtime.bench.profile.trace import ORDER, PHASES, HostClock, Span, TracedOps, Tracer
from wisp_runtime.cli.profile import command
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.ops.protocol.weights.storage import WeightOps

NOT_COMPUTED = {
    *("expert_counts", "counts_on_host", "joins_shared", "kv_arena", "state_arena"),
    *("set_batch_invariant", "persistent_kernel"),
}


def methods_of(protocol):
    return {name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if name[0] != "_"}


def test_every_op_of_the_protocol_that_computes_has_a_phase():
    assert set(PHASES) == methods_of(Ops) - methods_of(WeightOps) - NOT_COMPUTED
    assert set(PHASES.values()) <= set(ORDER) == set(COLOURS)


def test_a_hybrid_mixtures_step_is_profiled_whole(tmp_path):
    folder = write_tiny(tmp_path / "m", config=FAMILIES["qwen3_5_moe"])
    arguments = ["--shape", folder, "--device", "cpu", "--threads", "1", "--context", "40", "--steps", "2"]
    said = CliRunner().invoke(command, [str(argument) for argument in arguments])
    assert said.exit_code == 0, said.output
    phases = {line[:11].strip() for line in said.output.splitlines()}
    assert {"qkv", "mixer input", "recurrence", "output", "router", "experts", "head"} <= phases
    assert "linear" not in phases
    assert "calls" in said.output
    assert "launches" not in said.output
    assert "as served (sampling, host work included)" in said.output


def test_kernels_of_convolutions_are_a_phase_of_their_own():
    tracer = Tracer(HostClock(), sees_kernels=True)

    class Device:
        def delta_net(self):
            tracer.timed("causal_conv", lambda: None)
            tracer.timed("delta_decode", lambda: None)

    with tracer.step() as spans:
        TracedOps(Device(), tracer).delta_net()
    assert [span.phase for span in spans] == ["convolution", "recurrence"]


@pytest.mark.parametrize(("read", "speed"), [(40_000, "0.40"), (4_000_000, "40")])
def test_the_columns_of_a_cpu_are_those_it_has_figures_for(read, speed):
    spans = [[Span("qkv", "project_qkv", 0.1)]]
    made = summarize("toy", 1, spans, {"qkv": read}, served_us=120.0, has_kernels=False)
    head, row = show(made, None).splitlines()[1:3]
    assert head.split() == ["phase", "op", "calls", "us", "a", "step", "us", "each", "share", "GB/s"]
    assert row.split()[-1] == speed
    without = summarize("toy", 1, spans, {}, served_us=None, has_kernels=False)
    assert "GB/s" not in show(without, None)
