"""Weights, end to end: what the operator mounts and tells is what the runtime finds and reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from wisp_operator import api
from wisp_operator.core.conditions import FAILURES
from wisp_operator.core.fit.sources import files_of
from wisp_operator.core.status_rules import FETCH_FAILURES
from wisp_operator.desired.cache_job import cache_jobs
from wisp_operator.desired.deployment import deployment
from wisp_operator.desired.pod.environment import OPTIONAL_KEYS, SECRET_KEYS
from wisp_operator.desired.settings import BuildSettings
from wisp_runtime import errors
from wisp_runtime.cli.pull import command as pull
from wisp_runtime.sources.adopt import is_of_namespace
from wisp_runtime.sources.resolve import resolve, source_of
from wisp_runtime.sources.s3 import BucketSource

FETCHED = ("hf://acme/tiny", "s3://models/tiny")
MOUNTED = ("file:///srv/models/tiny", "pvc://claim", "pvc://claim/a/b", "oci://ghcr.io/acme/tiny:1")


def model(uri: str, source: Mapping[str, Any] | None = None, **spec: Any) -> api.InferenceModel:
    document = {
        "apiVersion": api.API_VERSION,
        "kind": api.KIND,
        "metadata": {"name": "chat"},
        "spec": {"model": {"uri": uri, **(source or {})}, **spec},
    }
    return api.parse(document)


def pod(found: api.InferenceModel) -> dict[str, Any]:
    spec: dict[str, Any] = deployment(found, 1, BuildSettings())["spec"]["template"]["spec"]
    return spec


def variables(found: api.InferenceModel) -> set[str]:
    return {variable["name"] for variable in pod(found)["containers"][0]["env"]}


@pytest.mark.parametrize("uri", MOUNTED)
def test_what_is_mounted_is_the_folder_that_the_runtime_is_told(uri, tmp_path):
    container = pod(model(uri))["containers"][0]
    named = container["args"][1]
    weights = next(mount for mount in container["volumeMounts"] if mount["name"] == "model")
    assert named == weights["mountPath"]
    assert weights["readOnly"]
    assert source_of(named, None) is None  # a folder, nothing to fetch
    assert "HF_TOKEN" not in variables(model(uri))


@pytest.mark.parametrize("uri", FETCHED)
def test_what_is_fetched_goes_where_the_cache_is_mounted(uri):
    container = pod(model(uri))["containers"][0]
    arguments = container["args"]
    assert source_of(arguments[1], None) is not None
    cache = Path(arguments[arguments.index("--cache-dir") + 1])
    mounted = [Path(mount["mountPath"]) for mount in container["volumeMounts"] if mount["name"] == "cache"]
    assert any(folder in cache.parents for folder in mounted)
    assert is_of_namespace(
        cache
    )  # what makes copies of other namespaces be taken, and a node's disk be spared


@pytest.mark.parametrize(
    ("layout", "expect"),
    [
        (["config.json"], "."),
        (["models/config.json"], "models"),  # COPY model /models/ in an image
        (["config.json", "original/config.json"], "."),
        (["a/config.json", "b/config.json"], "."),  # whose is meant nobody knows
        (["a/b/config.json"], "."),
    ],
)
def test_a_mounted_model_is_the_folder_or_the_only_one_in_it(tmp_path, layout, expect):
    for name in layout:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert resolve(f"file://{tmp_path}", None, tmp_path) == (tmp_path / expect).resolve()


@pytest.mark.parametrize("uri", [uri for uri in MOUNTED if not uri.startswith("file")])
def test_what_only_a_pod_can_mount_is_refused_elsewhere_with_what_to_do(uri, tmp_path):
    with pytest.raises(errors.ModelUnsupported, match="must be mounted, which the operator does"):
        resolve(uri, None, tmp_path)


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        ("hf://acme/tiny", {"revision": "v1", "secretRef": {"name": "hub"}}),
        ("hf://acme/tiny", {}),
        ("s3://models/tiny", {"secretRef": {"name": "s3"}}),
    ],
)
@pytest.mark.parametrize("cache", ["NodeLocal", "PVC"])
def test_a_prefetch_job_pulls_what_the_pod_will_look_for(uri, source, cache):
    found = model(uri, source, cache={"type": cache, "prefetch": True})
    job = cache_jobs(found, ["node-1"], BuildSettings())[0]["spec"]["template"]["spec"]
    fetch, serve = job["containers"][0], pod(found)["containers"][0]
    program, *arguments = fetch["args"]
    assert (fetch["command"], program) == (["wisp-runtime"], "pull")
    read = pull.make_context("pull", list(arguments)).params
    assert read["model"] == serve["args"][1] == uri
    assert read["revision"] == source.get("revision")
    assert str(read["cache_dir"]) == serve["args"][serve["args"].index("--cache-dir") + 1]
    assert str(read["termination_log"]) == fetch["terminationMessagePath"] == "/dev/termination-log"
    assert [volume for volume in job["volumes"] if volume["name"] == "cache"] == [
        volume for volume in pod(found)["volumes"] if volume["name"] == "cache"
    ]
    assert fetch["env"] == serve["env"]  # the same Secret, endpoint and home


def test_the_pull_command_refuses_what_it_does_not_know():
    with pytest.raises(click.NoSuchOption):
        pull.make_context("pull", ["hf://a/b", "--frobnicate"])


def test_every_key_of_a_secret_that_is_mounted_is_one_the_client_takes():
    keys = (*SECRET_KEYS["s3"], *OPTIONAL_KEYS["s3"])
    settings = {key: f"value-of-{key}" for key in keys} | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    taken = BucketSource("models/tiny", settings)._reader.config
    assert set(settings.values()) <= set(taken.values())
    assert SECRET_KEYS["hf"] == ("HF_TOKEN",)


@pytest.mark.parametrize("uri", FETCHED)
def test_a_model_without_a_secret_gets_no_credentials_and_one_with_gets_only_its_own(uri):
    secret_names = {*SECRET_KEYS["hf"], *SECRET_KEYS["s3"], *OPTIONAL_KEYS["s3"]}
    assert not variables(model(uri)) & secret_names
    mine = pod(model(uri, {"secretRef": {"name": "mine"}}))["containers"][0]["env"]
    named = {each["valueFrom"]["secretKeyRef"]["name"] for each in mine if "valueFrom" in each}
    assert named == {"mine"}
    scheme = uri.partition(":")[0]
    assert {each["name"] for each in mine if "valueFrom" in each} <= {
        *SECRET_KEYS[scheme],
        *OPTIONAL_KEYS.get(scheme, ()),
    }


OF_KUBELET = {"ImagePullFailed", "VolumeFailed"}  # before the runtime runs; docs/operations.md has them


@pytest.mark.parametrize("reason", sorted({*FETCH_FAILURES} - OF_KUBELET))
def test_every_failure_of_fetching_is_an_error_of_the_runtime_with_a_sentence(reason):
    assert issubclass(getattr(errors, reason), errors.RuntimeFailure)
    assert reason in FAILURES


@pytest.mark.parametrize("uri", ["s3://models/tiny", *MOUNTED])
def test_what_the_operator_cannot_read_is_left_to_the_first_pod(uri):
    assert files_of(model(uri).spec.model, sees_node=False) is None


def test_the_page_about_weights_names_every_failure_scheme_and_key():
    page = (Path(__file__).parents[2] / "docs" / "weights.md").read_text()
    told = set(re.findall(r"`([\w:/.-]+)`", page))
    schemes = {f"{scheme}://" for scheme in ("hf", "s3", "pvc", "oci", "file")}
    failures = {*FETCH_FAILURES} - OF_KUBELET
    assert {*failures, *SECRET_KEYS["s3"], *OPTIONAL_KEYS["s3"], "HF_TOKEN"} - told == {
        "TokenizerUnreadable",  # documented on the pages about models
    }
    assert schemes <= set(re.findall(r"\w+://", page))
