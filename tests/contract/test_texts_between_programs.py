"""The texts that no schema describes: each is written by one program's code here and read by another's."""

import asyncio
import re
from pathlib import Path
from typing import get_args

import pytest

import wisp_plan.fit.verdict as plan
from wisp_gateway.discovery import key_digests, snapshot
from wisp_gateway.discovery.snapshot import MODES, POLICIES, STATES
from wisp_gateway.errors import GatewayError
from wisp_gateway.inbound import request_body
from wisp_gateway.metrics import Metrics
from wisp_gateway.reporting.demand import report
from wisp_gateway.routing.registry import ModelRegistry
from wisp_gateway.upstream.tokens import Tokens
from wisp_operator import api
from wisp_operator.cli.checks import kernels_of
from wisp_operator.cluster.observation import failures
from wisp_operator.core import runtime_state
from wisp_operator.core.access.tokens import TokenKeys, make_keys_file
from wisp_operator.core.conditions import Condition
from wisp_operator.core.demand import DemandAggregator
from wisp_operator.core.fit.verdict import FitReport, measured
from wisp_operator.core.status import Progress, State, Status
from wisp_operator.desired.pod.environment import environment
from wisp_operator.desired.settings import BuildSettings
from wisp_operator.local.gateway.directory import DirectoryFile, entry
from wisp_operator.local.machine.hardware import device_for
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import dense_decoder
from wisp_plan.spec.rope import RopeSpec
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.messages import Fatal
from wisp_runtime.ops.cuda.device.catalogue import Catalogue
from wisp_runtime.ops.cuda.device.listing import rows
from wisp_runtime.server.api.errors import ApiError
from wisp_runtime.server.http.gateway_token import GatewayTokenCheck
from wisp_runtime.server.parsing import sampling
from wisp_runtime.server.parsing.body import parse_json
from wisp_runtime.server.startup_log import termination_message
from wisp_runtime.setting_fields import variable_of
from wisp_runtime.setting_parsers import parse_digests

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = {
    "apiVersion": "wisp.dev/v1alpha1",
    "kind": "InferenceModel",
    "metadata": {"name": "chat", "namespace": "team"},
    "spec": {
        "model": {"uri": "hf://org/name", "servedName": "chat-large"},
        "coldStart": {"mode": "Reject", "maxWait": "90s", "queueLimit": 7},
        "routing": {"policy": "LeastLoad"},
        "scaling": {"targetConcurrency": 5},
    },
}
SPEC = dense_decoder(
    "LlamaForCausalLM",
    "llama",
    layers=2,
    hidden=64,
    inner=128,
    vocab=256,
    max_context=512,
    attention=AttentionSpec(4, 2, 16, RopeSpec(rotary_size=16)),
    norm_eps=1e-5,
)


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": "\xff"}', b"[" * 200_000, b'{"n": NaN}'])
def test_the_gateway_and_a_pod_refuse_a_body_that_is_no_json_with_the_same_code(body):
    with pytest.raises(GatewayError) as at_the_gateway:
        request_body.parse(body).with_model("chat")
    with pytest.raises(ApiError) as at_the_pod:
        parse_json(body)
    assert at_the_gateway.value.code == at_the_pod.value.code == "invalid_json"


def test_the_doctor_reads_what_the_runtime_lists_of_kernels(tmp_path):
    check = kernels_of(rows(Catalogue(), ["sm_90a"], tmp_path), str(tmp_path))
    assert check.standing == "warn"
    assert re.match(r"0 of \d+ for sm_90a compiled", check.found)


class FakePod:
    """What ``entry`` reads of a pod."""

    name, address, state, is_draining = "chat-1", "127.0.0.1:41001", "Ready", False


def written(tmp_path, state="Ready"):
    model = api.parse(MANIFEST)
    told = Status(
        state,
        names=("chat",),
        refused_names=("chat-large",),
        fit=FitReport("DoesNotFit", "Needs 17 GiB."),
        conditions=(Condition("Ready", "True", "Serving", "It answers."),),
    )
    found = entry(model, told, Progress("weights", 0.4), [FakePod()], created=1.9, api_keys=None)
    DirectoryFile(tmp_path / "directory.json").write([found])
    return found, snapshot.parse((tmp_path / "directory.json").read_bytes())


def test_the_gateway_reads_every_value_that_the_operator_writes_of_a_model(tmp_path):
    _, snapshot = written(tmp_path)
    assert list(snapshot) == ["team/chat"]
    model = snapshot["team/chat"]
    assert (model.served_name, model.state, model.reason, model.message) == (
        "chat-large", "Ready", "Serving", "It answers.",
    )  # fmt: skip
    assert (model.phase, model.progress, model.created) == ("weights", 0.4, 1)
    cold = model.cold_start
    assert (cold.mode, cold.max_wait_s, cold.heartbeat_s, cold.queue_limit) == ("Reject", 90, 10, 7)
    assert (model.routing, model.target_concurrency, model.fit_verdict) == ("LeastLoad", 5, "DoesNotFit")
    endpoint = model.endpoints[0]
    assert (endpoint.id, endpoint.address, endpoint.ready) == ("chat-1", "127.0.0.1:41001", True)


def test_the_gateway_gives_bare_names_to_the_models_that_the_operator_granted_them_to(tmp_path):
    model = written(tmp_path)[1]["team/chat"]
    assert (model.names, model.refused_names) == ({"chat"}, {"chat-large"})


def test_the_operator_writes_nothing_that_the_gateway_does_not_read(tmp_path):
    found, _ = written(tmp_path)
    source = (ROOT / "operator/wisp_gateway/discovery/snapshot.py").read_text()
    keys = {*found, *found["coldStart"], *found["endpoints"][0]}
    assert {key for key in keys if f'"{key}"' not in source} == set()


@pytest.mark.parametrize("state", get_args(State))
def test_every_state_of_the_operator_is_one_of_the_gateway(tmp_path, state):
    assert state in STATES
    assert written(tmp_path, state)[1]["team/chat"].state == state


@pytest.mark.parametrize(("values", "known"), [("policy", POLICIES), ("mode", MODES)])
def test_the_gateway_knows_every_value_that_the_crd_allows(values, known):
    crd = (ROOT / "crds/inferencemodels.yaml").read_text()
    allowed = re.search(rf"\n +{values}:\n(?: +\S.*\n)*? +enum: \[([^\]]+)\]", crd)
    assert allowed is not None
    assert {value.strip() for value in allowed[1].split(",")} == set(known)


def test_the_operator_reads_the_demand_that_the_gateway_reports(tmp_path):
    registry = ModelRegistry(Metrics(), lambda _: None)
    registry.update(written(tmp_path)[1])
    book = DemandAggregator()
    book.record(report("gw-1", registry), now=100.0)
    told = book.total("team/chat", now=100.0)
    assert (told.waiting, told.running, told.arrivals, told.idle_s) == (0, 0, 0, None)
    registry.states()[0].arrivals = 3
    book.record(report("gw-1", registry), now=101.0)
    assert book.total("team/chat", now=101.0).arrivals == 3


def test_the_operator_takes_over_the_ledger_that_a_pod_measured():
    fit = plan.check(SPEC, plan.FitRequest(device="cpu"), available_bytes=1 << 30, device_name="this machine")
    told = measured(runtime_state.parse({"ledger": fit.to_dict()}).ledger, "L4")
    assert told.verdict == "Fits"
    assert (told.weights_bytes, told.kv_bytes_per_token) == (fit.to_dict()["weightsBytes"], 512)
    assert told.max_context == 512
    assert told.headroom_bytes == fit.to_dict()["headroomBytes"] > 0


def test_a_machine_and_the_pod_on_it_count_the_same_memory(monkeypatch):
    monkeypatch.setattr("wisp_plan.hardware.host.available_bytes", lambda: 10 << 30)
    device = device_for(api.Gpu(count=0), "auto", [])
    assert device.available_bytes == int((10 << 30) * ServeConfig(model="/srv/chat").memory_fraction)


def test_a_pods_last_words_become_the_failure_in_status():
    text = termination_message(Fatal("DoesNotFit", "needs 17.1 GiB, …", 3, {"neededBytes": 5}))
    pod = {"metadata": {"namespace": "team", "name": "chat-1"}, "spec": {"containers": [{}]}}
    pod["status"] = {
        "containerStatuses": [
            {"name": "runtime", "state": {"terminated": {"exitCode": 3, "message": text}}, "restartCount": 0}
        ]
    }
    found = failures.failure_of(pod, 50.0)
    assert (found.reason, found.message, found.exit_code) == ("DoesNotFit", "needs 17.1 GiB, …", 3)
    assert found.details == {"neededBytes": 5}


def answer_of_a_pod(digests, headers):
    """Status that a pod with these digests gives to a request for ``/state``."""

    async def state(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": "/state", "headers": headers}
    asyncio.run(GatewayTokenCheck(state, digests)(scope, None, send))
    return sent[0]["status"]


def test_a_pod_and_the_operator_know_the_gateway_by_the_same_tokens(tmp_path):
    keys = make_keys_file(tmp_path / "keys")
    gateway, operator = Tokens(keys), TokenKeys(keys)
    variables = environment(api.parse(MANIFEST), BuildSettings(), operator.digests("team/chat"))
    value = next(v["value"] for v in variables if v["name"] == variable_of("pod_token_sha256"))
    digests = parse_digests(value)
    assert answer_of_a_pod(digests, gateway.for_pods("team/chat")) == 200
    assert answer_of_a_pod(digests, [(b"x-wisp-token", operator.of_pods("team/chat").encode())]) == 200
    assert answer_of_a_pod(digests, gateway.for_pods("other/chat")) == 401  # another model's token
    assert answer_of_a_pod(digests, []) == 401
    assert answer_of_a_pod(digests, [(b"x-wisp-token", value.encode())]) == 401  # a digest is no secret
    name, token = (value.decode() for _, value in gateway.for_demand("gw-1"))
    assert operator.proves_demand(name, token)
    assert not operator.proves_demand("gw-2", token)


def test_a_second_key_is_accepted_before_the_gateway_uses_it(tmp_path, monkeypatch):
    keys = make_keys_file(tmp_path / "keys")
    monkeypatch.setattr("wisp_operator.core.access.tokens.RECHECK_S", 0.0)
    monkeypatch.setattr("wisp_gateway.upstream.tokens.RECHECK_S", 0.0)
    gateway, operator = Tokens(keys), TokenKeys(keys)
    first, old = gateway.for_pods("team/chat"), keys.read_text()
    keys.write_text(f"{old}# next\n{'n' * 32}\n")
    assert gateway.for_pods("team/chat") == first
    digests = operator.digests("team/chat")
    assert len(digests) == 2
    (tmp_path / "new").write_text(f"{'n' * 32}\n{old}")
    (tmp_path / "new").replace(keys)
    assert gateway.for_pods("team/chat") != first
    assert answer_of_a_pod(digests, gateway.for_pods("team/chat")) == 200
    keys.write_text("")  # not a file of keys: the last good ones stay
    assert answer_of_a_pod(digests, gateway.for_pods("team/chat")) == 200
    assert set(operator.digests("team/chat")) <= set(digests)


def test_the_runtime_ranks_every_priority_that_the_gateway_sends():
    assert set(sampling.PRIORITIES) == set(key_digests.PRIORITIES)
    ranks = [sampling.priority_of({sampling.PRIORITY_HEADER: name}) for name in key_digests.PRIORITIES]
    assert ranks == sorted(ranks, reverse=True), "lower runs first"
    sends = (ROOT / "operator/wisp_gateway/upstream/proxy.py").read_text()
    assert f'b"{sampling.PRIORITY_HEADER}"' in sends
