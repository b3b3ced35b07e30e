"""Dataclass fields that are settings: each with its parser, metavar and help text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

from wisp_runtime.setting_parsers import parse_choice

ENVIRONMENT_PREFIX = "WISP_"


def option(default: Any, parse: Callable[[str], Any], metavar: str, help: str) -> Any:
    """Make a field whose value is read by ``parse``."""
    return field(default=default, metadata={"parse": parse, "metavar": metavar, "help": help})


def choice(choices: tuple[str, ...], default: str, help: str) -> Any:
    """Make a field whose value is one of ``choices``."""
    return option(default, parse_choice(*choices), "|".join(choices), help)


def flag(default: bool, help: str) -> Any:
    """Make a field that is on or off."""
    return field(default=default, metadata={"is_flag": True, "help": help})


def flag_of(name: str) -> str:
    """Return the flag of a field: ``max_context`` → ``--max-context``."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """Return the environment variable of a field: ``max_context`` → ``WISP_MAX_CONTEXT``."""
    return ENVIRONMENT_PREFIX + name.upper()
