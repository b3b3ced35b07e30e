"""Command line ``wisp-gateway``; every flag is also ``WISP_GATEWAY_<FLAG>`` in the environment."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import uvloop

from wisp_gateway.config import Config
from wisp_gateway.errors import StartError
from wisp_gateway.gateway import Gateway
from wisp_http.log_lines import FORMATS, set_up_log

DEFAULTS = {field.name: field.default for field in fields(Config)}
Command = Callable[..., None]
CLUSTER = "kubernetes"
# Beside a client's connection and the one to its pod: idle ones to pods, the API server, the log.
OWN_FILES = 1024
LEVELS = ("debug", "info", "warning", "error")


class PortType(click.IntRange):
    """Port number; Kubernetes sets ``WISP_GATEWAY_PORT`` to a URL where a Service is called wisp-gateway."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Take the default where the value is a service link such as ``tcp://10.0.0.7:80``."""
        if isinstance(value, str) and value.startswith("tcp://"):
            value = DEFAULTS["port"]
        return super().convert(value, param, ctx)


def _option(flag: str, kind: Any, text: str) -> Callable[[Command], Command]:
    default = DEFAULTS[flag.removeprefix("--").replace("-", "_")]
    return click.option(flag, type=kind, default=default, show_default=default not in (None, ""), help=text)


@click.command(context_settings={"auto_envvar_prefix": "WISP_GATEWAY", "max_content_width": 110})
@click.option(
    "--directory",
    required=True,
    metavar="FILE|kubernetes",
    help="JSON file of models and pods, or the cluster that KUBECONFIG or the pod's service account names.",
)
@click.option("--namespace", "namespaces", multiple=True, help="Watch this namespace only; repeatable.")
@_option("--host", str, "Address to listen on; 0.0.0.0 for every one.")
@_option("--port", PortType(0, 65535), "Port to listen on; 0 lets the system choose.")
@_option("--metrics-port", click.IntRange(1, 65535), "Port that serves /metrics to everybody who reaches it.")
@_option("--demand-url", str, "URL of the operator for reports of waiting and running requests.")
@_option("--name", str, "This gateway's name in what it reports (default: gateway, or the pod's name).")
@_option(
    "--api-keys",
    click.Path(path_type=Path, dir_okay=False),
    "File of keys, one a line: NAME:KEY, limits after it.",
)
@_option(
    "--limits-state",
    click.Path(path_type=Path, dir_okay=False),
    "File that keeps the use of keys' limits over a restart; without it, all begin anew.",
)
@_option(
    "--pod-token-keys",
    click.Path(path_type=Path, dir_okay=False),
    "File of the keys, shared with the operator, that tokens for pods and for demand are derived from.",
)
@click.option(
    "--allow-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Let web pages of this origin, or of all (*), call from a browser (CORS); repeatable.",
)
@_option("--max-body-bytes", click.IntRange(1), "Largest request body.")
@_option("--max-held-bytes", click.IntRange(1), "Bodies and unread answers held at once; one more gets 429.")
@_option("--max-header-bytes", click.IntRange(256), "Largest request head.")
@_option("--max-answer-bytes", click.IntRange(1), "Largest answer that is not streamed.")
@_option("--keep-alive-s", click.FloatRange(1), "Keep idle client connections open this long.")
@_option("--max-connections", click.IntRange(1), "Clients' connections at once; one more gets 503.")
@_option("--max-connections-per-address", click.IntRange(1), "Of these, from one client's address.")
@_option("--header-timeout-s", click.FloatRange(0.1), "Time for a request's head to arrive.")
@_option("--body-timeout-s", click.FloatRange(0.1), "Time for a request's body to arrive.")
@_option("--write-timeout-s", click.FloatRange(0.1), "Time for a client to read on, or it is cut off.")
@_option("--connect-timeout-s", click.FloatRange(0.1), "Time for a pod to accept a connection.")
@_option("--idle-timeout-s", click.FloatRange(1), "Give up on a pod that sends nothing for this long.")
@_option("--shutdown-delay-s", click.FloatRange(0), "After SIGTERM, keep listening this long, not ready.")
@_option("--drain-timeout-s", click.FloatRange(0), "Then finish what runs for at most this long.")
@_option("--log-level", click.Choice(LEVELS), "Least severe message to log.")
@_option("--log-format", click.Choice(FORMATS), "Form of a log line.")
@click.option(
    "--otlp-endpoint",
    envvar=["WISP_GATEWAY_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"],
    metavar="URL",
    help="Collector that gets traces of requests, OTLP over HTTP.  [env: OTEL_EXPORTER_OTLP_ENDPOINT]",
)
def main(**settings: Any) -> None:
    """Serve the models of a directory under one OpenAI endpoint; hold, wake, route and stream."""
    set_up_log(settings["log_level"], settings["log_format"])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    directory = settings.pop("directory")
    try:
        config = Config(None if directory == CLUSTER else Path(directory), **settings)
        if config.api_keys is not None:
            config.api_keys.read_text()
        _raise_file_limit(2 * config.max_connections + OWN_FILES)
        uvloop.run(_serve(config))
    except (StartError, OSError, UnicodeDecodeError) as error:
        click.echo(f"wisp-gateway: {error}", err=True)
        sys.exit(1)


async def _serve(config: Config) -> None:
    await Gateway(config).run()


def _raise_file_limit(wanted: int) -> None:
    """Let the process open as many files as its connections need, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if possible > soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible < wanted:
        logging.warning("%d files may be open, too few for --max-connections; %d are needed", hard, wanted)
