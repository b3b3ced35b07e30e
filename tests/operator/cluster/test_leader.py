"""Leader election: one Lease, several replicas, and an API that refuses lost races as the real one does."""

import asyncio
import time
from dataclasses import replace

import pytest
from machine_pace import pace

from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.config import BadSetting, OperatorConfig
from wisp_operator.cluster.leader import Leader, ObservedLease
from wisp_operator.cluster.metrics import Metrics

CONFIG = OperatorConfig(identity="one", advertise="127.0.0.1:1", lease_s=1.0, renew_s=0.1)
HELD = {"holderIdentity": "one", "renewTime": "t1", "leaseDurationSeconds": 6}


@pytest.mark.parametrize(
    ("observations", "free"),
    [
        ([(0, {})], True),  # no leader yet
        ([(0, HELD)], False),
        ([(0, HELD), (5.9, HELD)], False),
        ([(0, HELD), (6.0, HELD)], True),  # silent for as long as the Lease lasts
        ([(0, HELD), (5, HELD | {"renewTime": "t2"}), (10, HELD | {"renewTime": "t2"})], False),
        ([(0, HELD), (1, HELD | {"holderIdentity": ""})], True),  # given back
    ],
)
def test_a_lease_is_free_when_its_holder_has_been_silent_for_its_time(observations, free):
    sighting = ObservedLease()
    for now, spec in observations:
        sighting.observe(spec, now)
        last = sighting.is_free(spec, now)
    assert last is free


def test_of_a_deleted_lease_one_replica_leads():
    """The Lease is deleted, or made anew without a holder, at any moment between two renewals."""

    async def scenario():
        api = LeaseApi()
        replicas = [replica(api, f"r{i}") for i in range(3)]
        tasks = [asyncio.create_task(member.run()) for member in replicas]
        await until(lambda: any(member.is_leader for member in replicas))
        led = 0
        for step in range(600):
            if step % 97 == 0:
                api.lease = None
            if step % 194 == 0:
                api.version += 1
                api.lease = {"metadata": {"resourceVersion": str(api.version)}, "spec": {}}
            await asyncio.sleep(0.01)
            leaders = sum(member.is_leader for member in replicas)
            assert leaders <= 1
            led += leaders
        assert led > 50  # nor does a deleted Lease leave the cluster without a leader for long
        await end(tasks)

    asyncio.run(scenario())


class LeaseApi:
    """The API server as far as one Lease goes, with optimistic locking."""

    def __init__(self):
        self.lease, self.version, self.is_away = None, 0, False

    async def request(self, method, path, *, verb, body=None):
        await asyncio.sleep(0)
        if self.is_away:
            raise ApiError(path, 0, "", "no answer")
        if method == "GET":
            if self.lease is None:
                raise ApiError(path, 404, "NotFound", "")
            return self.lease
        expected = body["metadata"].get("resourceVersion")
        if method == "PUT" and self.lease is None:
            raise ApiError(path, 404, "NotFound", "")
        if expected != (str(self.version) if self.lease else None):
            raise ApiError(path, 409, "Conflict", "")
        self.version += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.version)}}
        return self.lease


def replica(api, identity, led=None, **changes):
    config = replace(CONFIG, identity=identity, advertise=f"{identity}:1", **changes)
    return Leader(api, config, Metrics(), led or (lambda: None))


async def until(claim, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not claim():
            await asyncio.sleep(0.02)


def test_of_many_replicas_one_leads_and_all_know_where():
    async def scenario():
        api, calls = LeaseApi(), []
        replicas = [replica(api, f"r{i}", lambda i=i: calls.append(i), lease_s=4.0) for i in range(4)]
        tasks = [asyncio.create_task(found.run()) for found in replicas]
        await until(lambda: any(found.is_leader for found in replicas))
        for _ in range(30):
            await asyncio.sleep(0.02)
            assert sum(found.is_leader for found in replicas) == 1
        leader = next(i for i, found in enumerate(replicas) if found.is_leader)
        assert calls == [leader]
        assert {found.address for found in replicas} == {f"r{leader}:1"}
        await end(tasks)

    asyncio.run(scenario())


def test_a_leader_that_ends_gives_the_lease_back():
    async def scenario():
        api = LeaseApi()
        first, second = (replica(api, name, lease_s=4.0) for name in ("one", "two"))
        task = asyncio.create_task(first.run())
        await until(lambda: first.is_leader)
        other = asyncio.create_task(second.run())
        await end([task])
        ended = time.monotonic()
        assert not first.is_leader
        assert api.lease["spec"]["holderIdentity"] == ""
        await until(lambda: second.is_leader)
        took_s = time.monotonic() - ended
        await end([other])
        return took_s

    with pace() as machine:
        took_s = asyncio.run(scenario())
    assert took_s < 3.0 * machine.stretch  # less than the Lease's 4 s


def test_the_lease_is_given_back_though_tasks_that_begin_meanwhile_are_cancelled():
    """As kopf does at its end with every task that it does not know."""

    async def scenario():
        api = LeaseApi()
        leader = replica(api, "one", lease_s=4.0)
        task = asyncio.create_task(leader.run())
        await until(lambda: leader.is_leader)
        known = asyncio.all_tasks()
        answer_at_once = api.request

        async def answer_later(*arguments, **options):
            await asyncio.sleep(0.05)
            return await answer_at_once(*arguments, **options)

        api.request = answer_later
        task.cancel()
        while not task.done():
            await asyncio.sleep(0.01)
            for begun in asyncio.all_tasks() - known:
                begun.cancel()
        assert api.lease["spec"]["holderIdentity"] == ""

    asyncio.run(scenario())


def test_the_lease_is_given_back_though_a_renewal_was_cancelled_after_the_server_wrote_it():
    async def scenario():
        api = LeaseApi()
        leader = replica(api, "one", lease_s=4.0)
        task = asyncio.create_task(leader.run())
        await until(lambda: leader.is_leader)
        answer_at_once, written = api.request, asyncio.Event()

        async def write_and_stay_silent(*arguments, **options):
            api.request = answer_at_once
            await answer_at_once(*arguments, **options)
            written.set()
            await asyncio.sleep(60)

        api.request = write_and_stay_silent
        await written.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert api.lease["spec"]["holderIdentity"] == ""

    asyncio.run(scenario())


def test_a_leader_that_cannot_renew_stops_before_another_may_begin():
    async def scenario():
        api = LeaseApi()
        first, second = replica(api, "one"), replica(api, "two")
        task = asyncio.create_task(first.run())
        await until(lambda: first.is_leader)
        reachable, first._api = LeaseApi(), api
        reachable.lease, reachable.version = api.lease, api.version
        api.is_away = True  # for the first; the second reaches another copy of the same Lease
        second._api = reachable
        other = asyncio.create_task(second.run())
        async with asyncio.timeout(60):
            while not second.is_leader:
                await asyncio.sleep(0.01)
        assert not first.is_leader
        await end([task, other])

    asyncio.run(scenario())


def test_an_empty_lease_made_by_somebody_else_is_taken():
    async def scenario():
        api = LeaseApi()
        api.lease, api.version = {"metadata": {"name": "wisp-operator", "resourceVersion": "1"}}, 1
        found = replica(api, "one")
        task = asyncio.create_task(found.run())
        await until(lambda: found.is_leader)
        assert api.lease["spec"]["holderIdentity"] == "one"
        await end([task])

    asyncio.run(scenario())


@pytest.mark.parametrize(("lease_s", "renew_s"), [(1.0, 0.6), (0.5, 0.1)])
def test_lease_times_that_leave_no_second_try_are_refused(lease_s, renew_s):
    with pytest.raises(BadSetting, match="twice"):
        replace(CONFIG, lease_s=lease_s, renew_s=renew_s)


async def end(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_leader_that_was_late_begins_again():
    """What it did not do meanwhile, since it might not write, nobody else did either."""

    async def scenario():
        api, calls = LeaseApi(), []
        config = replace(CONFIG, lease_s=1.0, renew_s=0.4)
        late = Leader(api, config, Metrics(), lambda: calls.append(late.is_leader))
        task = asyncio.create_task(late.run())
        await until(lambda: late.is_leader)
        time.sleep(0.7)  # the process, or its machine, stands still
        assert not late.is_leader
        await until(lambda: late.is_leader)
        await until(lambda: len(calls) == 2)
        assert calls == [True, True]
        await end([task])

    asyncio.run(scenario())
