"""Work queue: one worker a model, turns by namespace, bounds on the time and the retries of one model."""

import asyncio
import time

import pytest

from wisp_operator.cluster import workqueue
from wisp_operator.cluster.metrics import Metrics
from wisp_operator.cluster.workqueue import WorkQueue


def processed(reconcile, drive, workers=8):
    """Run a queue with ``reconcile`` while ``drive(queue)`` runs; the queue."""

    async def scenario():
        queue = WorkQueue(Metrics())
        running = asyncio.create_task(queue.run(reconcile, workers))
        try:
            await asyncio.wait_for(drive(queue), 60)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return queue

    return asyncio.run(scenario())


def test_a_namespace_with_thousands_of_models_delays_no_other():
    order = []

    async def reconcile(key):
        order.append(key)
        await asyncio.sleep(0)

    async def drive(queue):
        for number in range(5000):
            queue.add(f"many/{number}")
        queue.add("one/chat")
        queue.add("two/chat")
        while len(order) < 5002:
            await asyncio.sleep(0.01)

    processed(reconcile, drive)
    assert order.index("one/chat") < 16
    assert order.index("two/chat") < 16


def test_slow_reconciles_of_one_namespace_leave_workers_to_the_others():
    done = []

    async def reconcile(key):
        if key.startswith("slow/"):
            await asyncio.sleep(60)
        done.append(key)

    async def drive(queue):
        for number in range(100):
            queue.add(f"slow/{number}")
        await asyncio.sleep(0.05)
        for number in range(20):
            queue.add(f"other/{number}")
        while len(done) < 20:
            await asyncio.sleep(0.01)

    processed(reconcile, drive)


def test_a_reconcile_without_end_is_given_up_and_tried_again(monkeypatch):
    monkeypatch.setattr(workqueue, "MAX_RECONCILE_S", 0.05)
    monkeypatch.setattr(workqueue, "FIRST_RETRY_S", 0.05)
    began = []

    async def reconcile(key):
        began.append(key)
        await asyncio.sleep(60)

    async def drive(queue):
        queue.add("a/chat")
        while len(began) < 2:
            await asyncio.sleep(0.01)
            assert queue.longest_busy_s() < 30

    processed(reconcile, drive, workers=1)


def test_demand_for_a_model_whose_writes_fail_is_tried_no_more_often_than_its_backoff(monkeypatch):
    monkeypatch.setattr(workqueue, "MAX_ASKED_RETRY_S", 0.1)
    tries = []

    async def reconcile(key):
        tries.append(time.monotonic())
        raise ValueError("403")

    async def drive(queue):
        while len(tries) < 9:  # with the queue's own back-off the ninth came after two minutes
            queue.add_asked("a/chat")
            await asyncio.sleep(0.01)

    processed(reconcile, drive)
    assert tries[-1] - tries[0] > 8 * 0.09  # not for each report


def test_a_model_whose_own_writes_change_it_while_another_fails_is_not_tried_in_a_loop(monkeypatch, caplog):
    monkeypatch.setattr(workqueue, "MAX_CHANGED_RETRY_S", 0.4)
    tries = []

    async def reconcile(key):
        tries.append(time.monotonic())
        queues[0].add(key)  # the event of a child that was applied, before the status was refused
        raise ValueError("403")

    queues = []

    async def drive(queue):
        queues.append(queue)
        queue.add("a/chat")
        await asyncio.sleep(1.2)

    processed(reconcile, drive)
    # at once after the first failure, then each 0.4 s
    assert 2 <= len(tries) <= 4 + (tries[-1] - tries[0]) / 0.4
    assert "again within" in caplog.messages[0]


def test_a_model_that_changes_while_it_is_processed_is_processed_again_by_itself():
    running, most, runs, proceed = 0, 0, [], asyncio.Event()

    async def reconcile(key):
        nonlocal running, most
        running += 1
        most = max(most, running)
        runs.append(key)
        await proceed.wait()
        running -= 1

    async def drive(queue):
        queue.add("a/chat")
        while not runs:
            await asyncio.sleep(0.01)
        queue.add("a/chat")
        queue.add("a/chat")
        proceed.set()
        while len(runs) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)

    processed(reconcile, drive)
    assert (most, len(runs)) == (1, 2)


@pytest.mark.parametrize("seconds", [0.05, None])
def test_a_reconcile_says_when_the_next_one_is_due(seconds):
    runs = []

    async def reconcile(key):
        runs.append(key)
        return seconds

    async def drive(queue):
        queue.add("a/chat")
        while seconds and len(runs) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)

    processed(reconcile, drive)
    assert len(runs) == 1 if seconds is None else len(runs) > 1
