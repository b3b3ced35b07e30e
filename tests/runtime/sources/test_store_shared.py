"""The cache of downloads, shared: processes that fetch the same model, wait, stand still and die."""

import multiprocessing
import os
import signal
import threading
import time

import pytest
from fake_source import FILES, RANGE, WEIGHTS, Fake, content

from wisp_runtime.errors import CacheUnusable
from wisp_runtime.sources import transfer
from wisp_runtime.sources.store import obtain

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(transfer, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(transfer, "_PAUSE_S", 0.001)


def _in_process(work, *arguments):
    process = FORK.Process(target=work, args=arguments)
    process.start()
    return process


def _obtain_slowly(cache_dir, counter):
    source = Fake()

    def count(_, start, stop):
        with counter.get_lock():
            counter.value += stop - start
        time.sleep(0.05)

    source.before_read = count
    obtain(source, cache_dir)


def test_many_processes_fetch_a_model_once(tmp_path):
    counter = FORK.Value("q", 0)
    processes = [_in_process(_obtain_slowly, tmp_path, counter) for _ in range(5)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 5
    assert counter.value == len(WEIGHTS) + 2


def _hold_at_half(cache_dir, reached):
    source = Fake()

    def stand_still(_, start, __):
        if start >= 5 * RANGE:
            reached.set()
            time.sleep(300)

    source.before_read = stand_still
    obtain(source, cache_dir)


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of the model and stands still half-way."""
    reached = FORK.Event()
    process = _in_process(_hold_at_half, tmp_path, reached)
    assert reached.wait(60)
    yield process
    process.kill()
    process.join()


def test_a_holder_that_stands_still_is_named_after_a_bounded_wait(tmp_path, holder):
    moved = []
    with pytest.raises(CacheUnusable, match=rf"process {holder.pid} on .* made no progress for 1 s"):
        obtain(Fake(), tmp_path, lambda *progress: moved.append(progress), stall_s=1.0)
    assert moved  # its progress is shown as ours meanwhile
    assert {total for _, total in moved} == {len(WEIGHTS) + 2}


def test_a_holder_that_is_killed_leaves_its_lock_and_its_bytes_to_the_next(tmp_path, holder):
    source, found = Fake(), []
    waiter = threading.Thread(target=lambda: found.append(obtain(source, tmp_path)))
    waiter.start()
    time.sleep(0.5)
    assert found == []
    os.kill(holder.pid, signal.SIGKILL)
    waiter.join(60)
    assert content(found[0]) == FILES
    assert source.fetched() < len(WEIGHTS)
