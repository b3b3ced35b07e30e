"""``wisp-runtime serve MODEL``: options generated from the fields of :class:`ServeConfig`.

Reads the command line; the server is in ``server/process.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import Field
from typing import Any

import click

from wisp_runtime.config import ServeConfig, check_environment, options
from wisp_runtime.errors import ConfigError
from wisp_runtime.setting_fields import flag_of, variable_of


class Setting(click.ParamType[Any]):
    """A click type around a parser of ``config.py``."""

    def __init__(self, parse: Callable[[str], Any], metavar: str) -> None:
        self.name = metavar
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a value from the command line; defaults pass unchanged."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ConfigError as error:
            return self.fail(f"{error.message}.", param, ctx)


def option_of(setting: Field[Any]) -> click.Option:
    """Make the click option of one field: flag, variable, default, type and help."""
    flag, metadata = flag_of(setting.name), setting.metadata
    shared = {"envvar": variable_of(setting.name), "show_envvar": True, "help": metadata["help"]}
    if metadata.get("is_flag"):
        declaration = f"{flag}/--no-{flag.removeprefix('--')}"
        return click.Option([declaration], default=setting.default, show_default=True, **shared)
    kind = Setting(metadata["parse"], metadata["metavar"])
    is_auto = setting.default is None and metadata["metavar"].startswith("auto")
    return click.Option(
        [flag],
        type=kind,
        metavar=metadata["metavar"],
        default=setting.default,
        show_default="auto" if is_auto else setting.default is not None,
        **shared,
    )


def serve(model: str, **settings: Any) -> None:
    """Serve MODEL behind the OpenAI API.

    MODEL is a directory or a GGUF file, file://PATH of one, hf://ORG/NAME, or s3://BUCKET/PREFIX.
    """
    try:
        check_environment()
        config = ServeConfig(model=model, **settings)
    except ConfigError as error:
        from wisp_runtime.server.startup_log import failure_of, write_termination_log

        write_termination_log(failure_of(error), settings.get("termination_log"))
        raise click.UsageError(error.message) from error
    from wisp_runtime.server.process import run

    sys.exit(run(config))


command = click.Command(
    "serve",
    callback=serve,
    params=[click.Argument(["model"]), *map(option_of, options())],
    help=serve.__doc__,
    context_settings={"help_option_names": ["-h", "--help"]},
)
