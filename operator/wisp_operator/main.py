"""The operator on a Kubernetes cluster: ``python -m wisp_operator.main``.

Wires the parts and starts them; every flag is also ``WISP_OPERATOR_<FLAG>`` in the environment.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from wisp_http.log_lines import FORMATS, JsonLines
from wisp_operator.cluster.config import OperatorConfig, own_address, own_identity, own_namespace
from wisp_operator.cluster.replica import Replica
from wisp_operator.core.access.policy import ENVIRONMENT, POD_ANNOTATIONS, POD_LABELS, Policy
from wisp_operator.core.exit_reasons import one_line
from wisp_operator.desired.settings import BuildSettings
from wisp_operator.errors import WispError

LEVELS = ("debug", "info", "warning", "error")
BUILD = {field.name: field.default for field in fields(BuildSettings)}


@click.command(context_settings={"auto_envvar_prefix": "WISP_OPERATOR", "max_content_width": 110})
@click.option("--namespace", help="Namespace of the operator and its Lease. [default: the pod's]")
@click.option(
    "--watch-namespaces",
    default="",
    metavar="NAME,…",
    help="Serve the models of these namespaces alone. [default: all]",
)
@click.option("--identity", help="Name of this replica. [default: the pod's]")
@click.option(
    "--advertise", help="HOST:PORT where other replicas reach this one. [default: POD_IP and the port]"
)
@click.option("--host", default="0.0.0.0", show_default=True, help="Address to listen on.")
@click.option("--port", default=8081, show_default=True, help="Port for demand, probes and metrics.")
@click.option("--gateway-url", default="", help="Base URL of the gateway, for status.url.")
@click.option(
    "--lease-name", default="wisp-operator", show_default=True, help="Lease that elects the leader."
)
@click.option("--lease-s", default=6.0, show_default=True, help="Succeed a leader silent for this long.")
@click.option("--renew-s", default=1.5, show_default=True, help="Time between renewals of the Lease.")
@click.option("--workers", default=8, show_default=True, help="Models reconciled at once.")
@click.option(
    "--pod-token-keys",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of the keys, shared with the gateway, that tokens for pods and for demand are derived from.",
)
@click.option(
    "--mark-idle-pods/--no-mark-idle-pods",
    "marks_idle_pods",
    default=False,
    show_default=True,
    help="Annotate pods so that a scale-down ends the least loaded first; needs patch of pods.",
)
@click.option(
    "--allow-file-below",
    default="",
    metavar="DIR,…",
    help="Directories of nodes that file:// models may lie in.",
)
@click.option("--allow-oci/--no-allow-oci", default=True, show_default=True, help="Run oci:// models.")
@click.option(
    "--allow-env",
    default=",".join(ENVIRONMENT),
    metavar="NAME,…",
    help="Names that spec.runtime.env may set.",
)
@click.option(
    "--allow-env-secrets/--no-allow-env-secrets",
    default=False,
    show_default=True,
    help="Let spec.runtime.env take values from Secrets.",
)
@click.option(
    "--allow-pod-labels",
    default=",".join(POD_LABELS),
    metavar="KEY,…",
    help="Labels that spec.podTemplate may set.",
)
@click.option(
    "--allow-pod-annotations",
    default=",".join(POD_ANNOTATIONS),
    metavar="KEY,…",
    help="Annotations likewise.",
)
@click.option(
    "--allow-priority-classes",
    default="",
    metavar="NAME,…",
    help="PriorityClasses that models may name.",
)
@click.option("--runtime-image", default=BUILD["image"], show_default=True, help="Image of the models' pods.")
@click.option(
    "--runtime-pull-policy",
    type=click.Choice(("Always", "IfNotPresent", "Never")),
    default=BUILD["pull_policy"],
    show_default=True,
    help="When to pull that image.",
)
@click.option(
    "--runtime-user-id", default=BUILD["user_id"], show_default=True, help="User of the models' pods."
)
@click.option(
    "--runtime-cpu", default=BUILD["cpu_request"], show_default=True, help="CPU that a pod requests."
)
@click.option("--runtime-memory", default=BUILD["memory_request"], show_default=True, help="Memory likewise.")
@click.option(
    "--runtime-ephemeral-storage",
    default=BUILD["ephemeral_storage_request"],
    show_default=True,
    help="Disk of the node likewise.",
)
@click.option(
    "--node-cache-dir", default=BUILD["node_cache_dir"], show_default=True, help="Downloads on a node."
)
@click.option("--hub-endpoint", default="", help="Mirror of huggingface.co.")
@click.option(
    "--otlp-endpoint", default="", help="Collector that gets traces of wakes and of the models' pods."
)
@click.option("--claim-size", default=BUILD["claim_size"], show_default=True, help="Size of a cache claim.")
@click.option("--claim-storage-class", default="", help="Storage class of it; empty for the default.")
@click.option(
    "--endpoint-grace-s",
    default=BUILD["endpoint_grace_s"],
    show_default=True,
    help="Time a stopping pod still accepts.",
)
@click.option(
    "--runtime-log-format",
    type=click.Choice(FORMATS),
    default=BUILD["log_format"],
    show_default=True,
    help="Form of the log's lines of the models' pods.",
)
@click.option(
    "--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="Least severe message."
)
@click.option(
    "--log-format", type=click.Choice(FORMATS), default="text", show_default=True, help="Form of a log line."
)
def main(log_level: str, log_format: str, **flags: Any) -> None:
    """Run one replica of the Wisp operator against the cluster of the kubeconfig or the service account."""
    _set_up_log(log_level, log_format)
    try:
        asyncio.run(Replica(_config(flags)).run())
    except WispError as error:
        click.echo(f"wisp-operator: {error}", err=True)
        sys.exit(1)


def _config(flags: dict[str, Any]) -> OperatorConfig:
    names = {"image": "runtime_image", "pull_policy": "runtime_pull_policy", "user_id": "runtime_user_id"}
    names |= {
        "cpu_request": "runtime_cpu",
        "memory_request": "runtime_memory",
        "log_format": "runtime_log_format",
    }
    names |= {"ephemeral_storage_request": "runtime_ephemeral_storage"}
    given = {name: flags.pop(names.get(name, name)) for name in BUILD if names.get(name, name) in flags}
    policy = Policy(
        file_directories=_listed(flags.pop("allow_file_below")),
        allows_oci=flags.pop("allow_oci"),
        environment=_listed(flags.pop("allow_env")),
        allows_env_secrets=flags.pop("allow_env_secrets"),
        pod_labels=_listed(flags.pop("allow_pod_labels")),
        pod_annotations=_listed(flags.pop("allow_pod_annotations")),
        priority_classes=_listed(flags.pop("allow_priority_classes")),
    )
    flags["namespace"] = flags["namespace"] or own_namespace()
    flags["watch_namespaces"] = _listed(flags["watch_namespaces"])
    flags["identity"] = flags["identity"] or own_identity()
    flags["advertise"] = flags["advertise"] or own_address(flags["port"])
    return OperatorConfig(**flags, policy=policy, build=BuildSettings(**given))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _set_up_log(level: str, form: str) -> None:
    logging.basicConfig(level=level.upper(), stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_no_retry)
        text = OneLineFormatter("%(asctime)s %(levelname)-7s %(message)s")
        handler.setFormatter(JsonLines() if form == "json" else text)
    for noisy in ("kopf", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class OneLineFormatter(logging.Formatter):
    """One line a message, since messages quote tenants' objects; a traceback has lines of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Format without control characters."""
        return one_line(super().formatMessage(record))


def _is_no_retry(record: logging.LogRecord) -> bool:
    """Drop the retries of each of kopf's watches; the Lease's renewal logs an API server that is away."""
    return not record.getMessage().startswith("Request attempt #")


if __name__ == "__main__":
    main()
