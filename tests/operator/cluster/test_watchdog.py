"""Probe answers: a watch that died silently, caches never filled, a reconcile without end."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from wisp_operator.cluster.access.api_server import ApiError
from wisp_operator.cluster.observation import watchdog
from wisp_operator.cluster.observation.watchdog import CacheWatchdog, differing


class Cluster:
    """Versions of objects in the cluster and in the caches, which follow it while ``watches`` live."""

    def __init__(self, busy_s=0.0):
        self.cluster, self.cached, self.is_filled, self.is_away = {}, {}, True, False
        self.busy_s, self.moves, self.catches_up = busy_s, False, False

    async def request(self, method, path, *, verb, query, accept):
        assert "PartialObjectMetadata" in accept  # versions only, however large the objects are
        if self.is_away:
            raise ApiError(path, 0, "", "no answer")
        if "pods" in path:
            return {"items": None}  # as the API server writes an empty list of metadata
        if self.moves:
            self.cluster["a/chat"] = str(int(self.cluster["a/chat"]) + 1)
            if self.catches_up:
                self.cached["a/chat"] = str(int(self.cluster["a/chat"]) - 1)
        return {
            "items": [
                {"metadata": {"namespace": "a", "name": key.partition("/")[2], "resourceVersion": version}}
                for key, version in self.cluster.items()
            ]
        }

    def versions(self, kind):
        return dict(self.cached) if kind == "InferenceModel" else {}

    def longest_busy_s(self):
        return self.busy_s


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Shorten the pauses alone: a busy machine may stand still for four of them."""
    monkeypatch.setattr(watchdog, "asyncio", SimpleNamespace(sleep=lambda s: asyncio.sleep(s / 1000)))


def liveness_problem(cluster, seconds=0.3, until=lambda found: True):
    """The watchdog's problem after comparing for a while, and as soon as a claim on the watchdog holds."""

    async def scenario():
        found = CacheWatchdog(cluster, cluster, cluster)
        task = asyncio.create_task(found.run())
        await asyncio.sleep(seconds)
        async with asyncio.timeout(60):
            while not until(found):
                await asyncio.sleep(0.01)
        assert not task.done(), f"the comparison ended: {task.exception()}"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return found.liveness_problem()

    return asyncio.run(scenario())


def test_caches_that_follow_the_cluster_are_healthy():
    cluster = Cluster()
    cluster.cluster = cluster.cached = {"a/chat": "7"}
    assert liveness_problem(cluster) == ""


@pytest.mark.parametrize("cached", [{"a/chat": "6"}, {}, {"a/chat": "7", "a/gone": "3"}])
def test_a_cache_that_stands_still_beside_the_cluster_is_a_dead_watch(cached):
    cluster = Cluster()
    cluster.cluster, cluster.cached = {"a/chat": "7"}, cached
    problem = liveness_problem(cluster, until=CacheWatchdog.liveness_problem)
    assert problem.startswith("the watch of InferenceModel is dead: it missed changes of a/")


def test_a_cache_that_is_late_but_moves_is_not():
    cluster = Cluster()
    cluster.cluster, cluster.cached = {"a/chat": "7"}, {"a/chat": "6"}
    cluster.moves = cluster.catches_up = True
    assert liveness_problem(cluster) == ""


def test_a_cluster_of_many_objects_is_listed_in_pages():
    cluster = Cluster()
    cluster.cluster = cluster.cached = {f"a/m{n}": "1" for n in range(250)}
    pages, request = [], cluster.request

    async def paged(method, path, *, query, **rest):
        pages.append(query)
        items = (await request(method, path, query=query, **rest))["items"] or []
        start, limit = int(query.get("continue", 0)), int(query["limit"])
        rest = {"continue": str(start + limit)} if start + limit < len(items) else {}
        return {"items": items[start : start + limit], "metadata": rest}

    cluster.request = paged
    assert liveness_problem(cluster, until=lambda _: len(pages) > 3) == ""
    assert {query.get("continue") for query in pages} == {None, "100", "200"}


def test_an_answer_that_is_no_list_ends_no_watchdog(caplog):
    cluster = Cluster()

    async def nonsense(*_, **__):
        return {"items": [{"metadata": None}]}

    cluster.request = nonsense
    assert liveness_problem(cluster, until=lambda _: caplog.text) == ""
    assert "tried again" in caplog.text


def test_an_api_server_that_is_away_is_no_fault_of_ours():
    cluster = Cluster()
    cluster.is_away = True
    assert liveness_problem(cluster, seconds=0.06) == ""


def test_a_reconcile_without_end_and_caches_never_filled_are_reported(monkeypatch):
    assert "takes 500 s" in liveness_problem(Cluster(busy_s=500.0), seconds=0)
    cluster = Cluster()
    cluster.is_filled = False
    found = CacheWatchdog(cluster, cluster, cluster)
    assert (found.liveness_problem(), found.readiness_problem()) == ("", "the caches are being filled")
    later = time.monotonic() + watchdog.FILL_S + 1
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: later)
    assert "gave nothing within" in found.liveness_problem()


def test_differences_name_both_versions_so_that_a_busy_object_differs_from_a_stale_one():
    assert differing({"a": "1", "b": "2"}, {"a": "1", "c": "3"}) == {("b", "2", ""), ("c", "", "3")}


@pytest.mark.parametrize(
    ("namespaces", "cluster", "is_filled"),
    [
        (["team"], {}, True),  # nothing there causes an event
        (["team"], {"a/chat": "1"}, False),  # its event is still to come
        ([], {}, False),  # nodes cause events
    ],
)
def test_caches_of_namespaces_without_models_count_as_filled(namespaces, cluster, is_filled):
    found = Cluster()
    found.is_filled, found.cluster = False, cluster

    async def scenario():
        task = asyncio.create_task(CacheWatchdog(found, found, found, namespaces).run())
        await asyncio.sleep(0.05)
        async with asyncio.timeout(60):
            while is_filled and not found.is_filled:
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert found.is_filled is is_filled
