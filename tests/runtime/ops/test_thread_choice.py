"""CPU threads are chosen by what a decode step's GEMMs take here and now."""

import pytest

from wisp_plan.presets import shape_spec
from wisp_runtime.ops.cpu import ops, thread_choice, threads
from wisp_runtime.ops.cpu.cpu_device import CpuDevice
from wisp_runtime.ops.cpu.thread_choice import candidates, choose_threads, fewest_worth, measure
from wisp_runtime.ops.cpu.threads import Workers


@pytest.mark.parametrize(
    ("available", "numbers"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])]
)
def test_powers_of_two_and_all_are_tried(available, numbers):
    assert candidates(available) == numbers


@pytest.mark.parametrize(
    ("ms", "threads"),
    [
        ({1: 22.2, 2: 26.1}, 1),  # the two-core machine of the record
        ({1: 22.2, 2: 21.9}, 1),  # 1 % is noise
        ({1: 40.0, 2: 21.0, 4: 12.0, 8: 11.9}, 4),
        ({1: 40.0, 2: 45.0, 4: 20.0}, 4),  # a slow pair hides no faster four
        ({1: 5.0}, 1),
    ],
)
def test_more_threads_are_taken_only_where_they_save_time(ms, threads):
    assert fewest_worth(ms) == threads


@pytest.mark.parametrize(("cost_s", "threads"), [({1: 0.003, 2: 0.004}, 1), ({1: 0.003, 2: 0.002}, 2)])
def test_the_trial_is_timed_in_turns_and_ends(cost_s, threads):
    now, ran = [0.0], []

    def trial(count):
        ran.append(count)
        now[0] += cost_s[count]

    assert measure([1, 2], trial, lambda: now[0]) == threads
    assert ran[:6] == [1, 2, 1, 2, 1, 2]
    assert now[0] < 0.08


def test_a_slow_trial_runs_three_times():
    now = [0.0]

    def trial(_count):
        now[0] += 10.0

    measure([1, 2], trial, lambda: now[0])
    assert now[0] == 10.0 * 2 * 4  # once to warm up


def test_the_gemms_of_a_model_run_with_every_number(monkeypatch):
    monkeypatch.setattr(thread_choice, "_TRIAL_S", 0.0)
    monkeypatch.setattr(thread_choice, "_TRIAL_BYTES", 1)
    assert choose_threads(shape_spec("smollm2-135m"), 2, pairs_rows=False) in (1, 2)


def test_a_large_models_trial_is_split_among_every_thread_that_is_tried(monkeypatch):
    """Smaller matrices would show no difference between 4 threads and 16."""
    shares = {}

    class Recording(Workers):
        def split(self, work, compute):
            counted = []
            super().split(work, lambda tiles: (counted.append(tiles), compute(tiles)))
            shares[self.threads] = max(len(counted), shares.get(self.threads, 0))

    monkeypatch.setattr(thread_choice, "_TRIAL_S", 0.0)
    monkeypatch.setattr(thread_choice, "_TRIAL_BYTES", 1)
    monkeypatch.setattr(thread_choice, "Workers", Recording)
    choose_threads(shape_spec("smollm2-1.7b"), 16, pairs_rows=False)
    assert shares == {2: 2, 4: 4, 8: 8, 16: 16}


def test_a_model_whose_gemms_are_never_split_has_one_thread_without_a_trial(monkeypatch):
    monkeypatch.setattr(thread_choice, "measure", lambda *_: pytest.fail("a trial"))
    assert choose_threads(shape_spec("toy"), 64, pairs_rows=False) == 1


def test_a_number_that_was_set_is_not_measured(monkeypatch):
    monkeypatch.setattr(ops, "choose_threads", lambda *_, **__: 3)
    spec = shape_spec("toy")
    asked, measured = CpuDevice(2), CpuDevice(None)
    for device in (asked, measured):
        device.require_model(spec, 16)
    assert (asked.ops.threads, measured.ops.threads) == (2, 3)


@pytest.mark.parametrize(("limit", "count"), [(None, 8), (2.5, 3), (0.5, 1), (64.0, 8)])
def test_no_more_threads_are_tried_than_a_pods_cpu_limit_allows(monkeypatch, limit, count):
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr(threads, "cpu_limit", lambda: limit)
    assert threads.available_threads() == count
