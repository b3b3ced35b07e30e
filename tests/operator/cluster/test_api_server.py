"""Requests to the API server: tries, their times, and answers that no server should give."""

import asyncio
import json
import time
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from wisp_operator.cluster.access.api_server import Api, ApiError
from wisp_operator.cluster.access.writer import ClusterWriter, NotLeading
from wisp_operator.cluster.metrics import Metrics

SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "chat", "namespace": "a", "uid": "7"}}


@asynccontextmanager
async def server(handler, tmp_path, monkeypatch):
    """An API server that answers with ``handler``; our client of it."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "c"}
    config["clusters"] = [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}]
    config["contexts"] = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
    config["users"] = [{"name": "u", "user": {"token": "t"}}]
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    monkeypatch.setattr(
        "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "kubeconfig")
    )
    api = Api(Metrics())
    try:
        yield api
    finally:
        await api.close()
        await runner.cleanup()


def test_a_write_whose_lease_is_lost_meanwhile_is_not_tried_again(tmp_path, monkeypatch):
    lease_ends = time.monotonic() + 1.0
    seen, given_up = [], asyncio.Event()

    async def answer(request):
        seen.append(request.method)
        await given_up.wait()
        return web.json_response({"message": "no"}, status=503)

    async def scenario():
        async with server(answer, tmp_path, monkeypatch) as api:
            writer = ClusterWriter(api, Metrics(), lambda: max(0.0, lease_ends - time.monotonic()))
            with pytest.raises(NotLeading):
                await writer.apply(SERVICE, over=SERVICE)
            given_up.set()  # with the lease: no answer has come

    asyncio.run(scenario())
    assert seen == ["PATCH"]


def test_an_apply_over_an_object_names_it_and_one_that_creates_forces_nothing(tmp_path, monkeypatch):
    seen = []

    async def answer(request):
        seen.append((dict(request.query), json.loads(await request.read())["metadata"].get("uid")))
        return web.json_response({})

    async def scenario():
        async with server(answer, tmp_path, monkeypatch) as api:
            writer = ClusterWriter(api, Metrics(), lambda: 5.0)
            plain = {**SERVICE, "metadata": {"name": "chat", "namespace": "a"}}
            await writer.apply(plain, over=SERVICE)
            await writer.apply(plain, over=None)

    asyncio.run(scenario())
    manager = {"fieldManager": "wisp-operator"}
    assert seen == [({**manager, "force": "true"}, "7"), (manager, None)]


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff\xfe", b"no JSON", b"[]", b"null"])
def test_an_answer_that_is_no_object_of_json_is_an_empty_one(body, tmp_path, monkeypatch):
    async def answer(_):
        return web.Response(body=body, content_type="application/json", charset="nope")

    async def scenario():
        async with server(answer, tmp_path, monkeypatch) as api:
            assert await api.request("GET", "/x", verb="get") == {}

    asyncio.run(scenario())


def test_a_refusal_that_is_no_status_object_is_an_error_with_its_code(tmp_path, monkeypatch):
    async def answer(_):
        return web.Response(status=403, body=b"[" * 100_000)

    async def scenario():
        async with server(answer, tmp_path, monkeypatch) as api:
            with pytest.raises(ApiError) as refusal:
                await api.request("GET", "/x", verb="get")
            assert refusal.value.code == 403
            assert len(str(refusal.value)) < 500

    asyncio.run(scenario())
