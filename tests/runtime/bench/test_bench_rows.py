"""Lower bounds, baselines, records and tables of benchmarks. No engine runs here."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from wisp_plan.memory.cache import one_pool
from wisp_plan.presets import shape_spec
from wisp_runtime.bench import nvml
from wisp_runtime.bench.baselines.published import with_baseline
from wisp_runtime.bench.contexts import insert_prefixes, make_prompts
from wisp_runtime.bench.harness import Output, Round, ScriptedChannel, requests_of
from wisp_runtime.bench.profile.breakdown import show, summarize
from wisp_runtime.bench.profile.svg import render
from wisp_runtime.bench.profile.trace import HostClock, Span, TracedOps, Tracer
from wisp_runtime.bench.record import Row, Spread, make_record, shown_command, write_record
from wisp_runtime.bench.roofline import (
    CEILINGS,
    ceiling_of,
    decode_lower_bound_s,
    phase_bytes,
    prefill_lower_bound_s,
    step_weight_bytes,
)
from wisp_runtime.bench.serving.clients import Streamed, figures, steady_gaps_ms
from wisp_runtime.bench.table import show_row
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import Load, Shutdown, StepOutput, TokenEvent
from wisp_runtime.errors import EngineFailed

LLAMA, H200 = shape_spec("llama-3-8b"), CEILINGS["H200"]
HELD = {"weights": "bf16", "kv": "bf16"}


@pytest.mark.parametrize(
    ("batch", "context", "bound_ms"),
    [
        (1, 640, 3.36),
        (8, 640, 3.49),
        (32, 640, 3.93),
        (64, 640, 4.53),
        (128, 640, 5.72),
        (256, 640, 8.1),
        (16, 7900, 7.0),
    ],
)
def test_the_lower_bound_of_a_decode_step_matches_the_table(batch, context, bound_ms):
    bound_s = decode_lower_bound_s(LLAMA, H200, batch=batch, context=context, **HELD)
    assert 1e3 * bound_s == pytest.approx(bound_ms, rel=0.01)


@pytest.mark.parametrize(
    ("prompt", "cached", "bound_ms"),
    [(512, 0, 9.1), (2048, 0, 38), (7900, 0, 161), (7916, 7900, 3.6)],
)
def test_the_lower_bound_of_a_first_token_matches_the_table_less_most_of_a_layer(prompt, cached, bound_ms):
    """The table counts the last layer fully: a 32nd, of which K and V are 4 %."""
    bound_s = prefill_lower_bound_s(LLAMA, H200, sequences=1, prompt=prompt, cached=cached, **HELD)
    spared = 0.96 / 32 if cached == 0 else 0  # there the weights' bytes are the limit
    assert 1e3 * bound_s == pytest.approx(bound_ms * (1 - spared), rel=0.02)


def test_a_window_bounds_the_reads_and_operations_of_attention():
    mistral = shape_spec("mistral-7b")
    near, far = (decode_lower_bound_s(mistral, H200, batch=16, context=c, **HELD) for c in (4096, 30000))
    assert near == far
    long = prefill_lower_bound_s(mistral, H200, sequences=1, prompt=8192, **HELD)
    assert long < 2.5 * prefill_lower_bound_s(mistral, H200, sequences=1, prompt=4096, **HELD)


def test_fp8_halves_the_bound_of_a_prompts_projections_alone():
    bf16 = prefill_lower_bound_s(LLAMA, H200, sequences=1, prompt=2048, **HELD)
    fp8 = prefill_lower_bound_s(LLAMA, H200, sequences=1, prompt=2048, weights="fp8", kv="bf16")
    assert 0.5 * bf16 < fp8 < 0.55 * bf16


def test_a_tied_head_is_read_though_the_embedding_is_not():
    tied = shape_spec("smollm2-135m")
    assert step_weight_bytes(tied, "bf16") == pytest.approx(2 * 134_515_008, rel=1e-3)
    assert step_weight_bytes(LLAMA, "bf16") == 2 * (8_030_261_248 - 128256 * 4096)


def test_the_phases_of_a_step_sum_to_its_bytes():
    phases = phase_bytes(LLAMA, batch=8, context=512, **HELD)
    norms = 2 * (2 * len(LLAMA.layers) + 1) * LLAMA.hidden
    cache = 8 * 512 * 131072
    assert sum(phases.values()) + norms == step_weight_bytes(LLAMA, "bf16") + cache


@pytest.mark.parametrize(
    ("gpu", "known"),
    [("NVIDIA H200", True), ("NVIDIA H100 80GB HBM3", True), ("NVIDIA L4", False), (None, False)],
)
def test_measured_cards_have_ceilings(gpu, known):
    assert (ceiling_of(gpu) is not None) == known


def row(**changes):
    fields = {"metric": "decode_step_ms", "value": 4.0, "path": "general", "shape": "llama-3-8b"}
    return Row(**(fields | {"weights": "bf16", "kv": "bf16", "batch": 8, "context": 512} | changes))


@pytest.mark.parametrize(
    ("changes", "gpu", "value"),
    [
        ({}, "NVIDIA H200", 5.088),
        ({}, "NVIDIA H100 80GB HBM3", None),  # another card
        ({}, None, None),
        ({"shape": "qwen3-8b"}, "NVIDIA H200", None),
        ({"weights": "fp8"}, "NVIDIA H200", 3.640),
        ({"batch": 7}, "NVIDIA H200", None),
        ({"metric": "first_token_ms", "batch": 1, "context": 7916}, "NVIDIA H200", None),  # nothing cached
        (
            {"metric": "first_token_ms", "batch": 1, "context": 7916, "more": {"cached": 7888}},
            "NVIDIA H200",
            11.958,
        ),
    ],
)
def test_a_baseline_needs_equal_conditions(changes, gpu, value):
    assert with_baseline(row(**changes), gpu).baseline_value == value


def test_a_spread_is_median_and_percentiles():
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0, 3.0)
    spread = Spread.of([float(n) for n in range(101)])
    assert (spread.median, spread.p10, spread.p90) == (50.0, 10.0, 90.0)


def test_a_record_has_rows_and_conditions(tmp_path):
    rows = [
        row(more={"p10": 3.9, "p90": 4.123456789}),
        row(lower_bound=3.49, baseline="vllm-0.26.0", baseline_value=5.088),
    ]
    record = make_record(
        "decode", rows, device="cpu", command=["wisp-runtime", "bench", "a b"], commit="abc1234"
    )
    write_record(tmp_path / "new" / "decode.json", record)
    written = json.loads((tmp_path / "new" / "decode.json").read_text())
    assert written["command"] == "wisp-runtime bench 'a b'"
    assert (written["name"], written["commit"], "gpu" in written) == ("decode", "abc1234", False)
    assert written["rows"][0]["p90"] == 4.1235
    assert "peer" not in written["rows"][0]
    baseline = {"peer": "vllm-0.26.0", "peer_value": 5.088, "floor": 3.49}
    assert written["rows"][1] | baseline == written["rows"][1]


@pytest.mark.parametrize(
    ("measured", "texts"),
    [
        (
            row(more={"p10": 3.9, "p90": 4.1}),
            ["llama-3-8b  decode_step_ms  batch 8, context 512  4  (p10 3.9"],
        ),
        (row(lower_bound=3.5, baseline="vllm", baseline_value=5.0), ["lower bound 3.5", "vllm 5"]),
        (
            row(metric="memory_measured_bytes", value=3 << 30, more={"off_percent": -0.5}),
            ["3.0 GiB", "-0.50 %"],
        ),
        (row(path="transformers, eager"), ["[transformers, eager]"]),
    ],
)
def test_a_row_is_a_line(measured, texts):
    assert [timing for timing in texts if timing not in show_row(measured)] == []


def test_without_a_driver_every_query_returns_none(monkeypatch):
    monkeypatch.setattr(nvml, "management_library", lambda: None)
    assert (nvml.card(), nvml.used_bytes(), nvml.process_bytes(1)) == (None, None, None)


def test_gaps_count_only_while_every_stream_runs():
    first = Streamed(0.0, (1.0, 2.0, 3.0, 4.0))
    late = Streamed(0.0, (1.5, 2.5, 3.5, 9.0))
    assert steady_gaps_ms([first, late]) == [1000.0, 1000.0, 1000.0, 1000.0]
    assert {name: value for name, value, _ in figures([first, late], 4)} == {
        "served_gap_ms": 1000.0,
        "served_first_token_ms": 1250.0,
        "served_tokens_per_s": pytest.approx(8 / 9),
    }


def test_the_mean_gap_is_of_tokens_where_an_event_holds_several():
    stream = Streamed(0.0, (1.0, 2.0, 3.0))
    means = [next(figures([stream], tokens))[2]["mean"] for tokens in (3, 6)]
    assert means == [1000.0, 500.0]


class TwoProcesses:
    """A management library with two processes that hides the memory of one."""

    def nvmlDeviceGetComputeRunningProcesses_v3(self, _handle, count, listed):
        listed[0].pid, listed[0].used = 7, 1 << 30
        listed[1].pid, listed[1].used = 8, (1 << 64) - 1
        count._obj.value = 2
        return 0


@pytest.mark.parametrize(("pid", "size"), [(7, 1 << 30), (8, None), (9, None)])
def test_the_memory_of_a_process_is_the_librarys_number_unless_hidden(monkeypatch, pid, size):
    monkeypatch.setattr(nvml, "management_library", TwoProcesses)
    monkeypatch.setattr(nvml, "_handle", lambda _: 1)
    assert nvml.process_bytes(pid) == size


def test_only_full_decode_steps_are_timed():
    times = [(0.0, 0), (1.0, 1), (2.0, 3), (2.5, 3), (3.5, 3), (4.0, 2)]
    done = Round(-1.0, tuple(Output(at, tokens, 0) for at, tokens in times))
    assert done.steps_ms(3, skip=0) == [500.0, 1000.0]
    assert done.steps_ms(3, skip=1) == [1000.0]
    assert done.first_token_s == 2.0


def test_a_script_resumes_when_the_engine_is_idle():
    seen = []

    def script():
        seen.append((yield requests_of([(1,)], 1, "a")))

    times = iter([1.0, 1.25, 1.5])
    channel = ScriptedChannel(script(), clock=lambda: next(times))
    (request,) = channel.receive(waits=True)
    assert channel.receive(waits=False) == []
    channel.send(StepOutput((TokenEvent(request.request_id, 5),), Load()))
    channel.send(StepOutput((TokenEvent(request.request_id, 6, "length"),), Load()))
    assert isinstance(channel.receive(waits=True)[0], Shutdown)
    assert seen == [Round(1.0, (Output(1.25, 1, 0), Output(1.5, 1, 0)))]


def test_a_refused_request_ends_the_benchmark():
    channel = ScriptedChannel(iter([]))  # type: ignore[arg-type]
    with pytest.raises(EngineFailed, match="too long"):
        channel.send(StepOutput((TokenEvent("a", None, "error", message="too long"),), Load()))


def test_inserted_prefixes_are_hits_for_their_prompts():
    limits = Limits(cache=one_pool(40, 16), max_step_tokens=64, max_concurrent=4, max_context=200, vocab=50)
    scheduler = Scheduler(limits)
    prompts = make_prompts(3, 100, 50, seed=1)
    insert_prefixes(scheduler, prompts)
    for request in requests_of(prompts, 4, "hit"):
        scheduler.submit(request)
    plan = scheduler.plan()
    assert [(chunk.start, chunk.tokens, chunk.samples) for chunk in plan] == [(96, 4, True)] * 3
    blocks = [block for chunk in plan for block in chunk.sequence.cache.tables[0]]
    assert len(set(blocks)) == len(blocks) == 3 * 7


class Ops:
    device = "cpu"

    def linear(self, x):
        return x + 1

    def swiglu(self, x):
        return x * 2

    def delta_net(self, x):
        return x

    def from_host(self, x):
        return x


def test_traced_ops_assign_plain_gemms_to_the_part_of_the_layer_before_them():
    tracer = Tracer(HostClock(), sees_kernels=False)
    ops = TracedOps(Ops(), tracer)
    assert ops.linear(1) == 2  # outside a step nothing is recorded
    with tracer.step() as spans:
        results = [
            ops.linear(1),
            ops.delta_net(3),
            ops.linear(1),
            ops.delta_net(3),
            ops.linear(1),
            ops.swiglu(3),
            ops.linear(1),
            ops.from_host(9),
        ]
    assert results == [2, 3, 2, 3, 2, 6, 2, 9]
    phases = ["linear", "recurrence", "output", "recurrence", "output", "gate/up", "down"]
    assert [span.phase for span in spans] == phases
    assert ops.device == "cpu"


def profile():
    traced = [
        [
            Span("qkv", "linear", ms),
            Span("qkv", "linear", ms),
            Span("attention", "split", 0.03),
            Span("attention", "combine", 0.01),
        ]
        for ms in (0.01, 0.02, 0.09)
    ]
    return summarize("llama: a step", 2, traced, {"qkv": 40_000_000}, served_us=75.0)


def test_a_profile_is_the_median_of_its_steps():
    made = profile()
    times = {(timing.phase, timing.kernel): (timing.launches, round(timing.us, 6)) for timing in made.timings}
    assert times == {
        ("qkv", "linear"): (2, 40.0),
        ("attention", "split"): (1, 30.0),
        ("attention", "combine"): (1, 10.0),
    }
    assert list(made.phases()) == ["qkv", "attention"]
    text = show(made, H200)
    assert "1000" in text  # 40 MB in 40 us
    assert "8.9" in text  # 40 MB at 4.5 TB/s
    assert "75.0 us" in text


def test_the_chart_is_an_svg_with_a_bar_of_each_phase():
    tree = ElementTree.fromstring(render(profile()))
    titles = [title.text for title in tree.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["qkv: 40.0 µs", "attention: 40.0 µs", "qkv: 20.0 µs", "attention: 20.0 µs"]


def test_a_record_is_json_whatever_its_order(tmp_path):
    made = make_record("made", [], device="cpu", command=["bench"], commit="abc")
    write_record(tmp_path / "made.json", made | {"rows": [{"metric": "a"}], "note": "after the rows"})
    assert json.loads((tmp_path / "made.json").read_text())["note"] == "after the rows"


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("bench decode --json /tmp/r/x.json --name x --commit abc --batch 1", "bench decode --batch 1"),
        ("bench decode --json=/tmp/x.json --batch=1", "bench decode --batch=1"),
        ("bench startup --checkpoint /tmp/models/llama", "bench startup --checkpoint llama"),
        ("bench serving --flag=--cache-dir=/home/me/c", "bench serving --flag=--cache-dir=c"),
        ("bench load --url http://h/v1 --api-key secret", "bench load --url http://h/v1"),
        ("python tests/bench/x.py --record", "python tests/bench/x.py"),
    ],
)
def test_a_record_s_command_names_no_folder_of_this_machine_and_no_secret(typed, shown):
    assert shown_command(typed.split()) == shown
