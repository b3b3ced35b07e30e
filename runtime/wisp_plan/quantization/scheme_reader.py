"""Look-ups that several readers of a ``quantization_config`` share."""

from __future__ import annotations

from wisp_plan.errors import ConfigInvalid
from wisp_plan.families.reader import ConfigReader
from wisp_plan.json_object import shorten
from wisp_plan.quantization.layer_names import LayerNames

READ_TYPES = "docs/checkpoints.md lists those that are"


def not_read(config: ConfigReader, key: str, what: object) -> ConfigInvalid:
    """Return the error for a format that is not read; it names the key, its value and the remedy."""
    name = config.path + key
    return ConfigInvalid(
        f"{config.file}: {name} is {shorten(what)}, a format that is not read; {READ_TYPES}. "
        "Choose another checkpoint of the model.",
        key=name,
    )


def layer_names(config: ConfigReader, *keys: str) -> LayerNames:
    """Read lists of layers; absent ones are empty."""
    entries = [entry for key in keys for entry in config.items(key)]
    return LayerNames.of(entries, config.path + keys[0])


def block_of(config: ConfigReader, key: str) -> tuple[int, int] | None:
    """Read the rows and columns of a block of weights; None where it is absent or null."""
    listed = config.items(key)
    if not listed:
        return None
    if len(listed) != 2 or not all(isinstance(extent, int) and 0 < extent <= 1024 for extent in listed):
        raise config.bad(key, "two whole numbers from 1 to 1024")
    rows, columns = listed
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    return rows, columns


def group_of(config: ConfigReader, key: str) -> int:
    """Read a group's size along K: a multiple of 16 from 16 to 1024, or 0 for -1, the whole axis."""
    if config.values.get(key) == -1:
        return 0
    size = config.integer(key)
    if size % 16 or size > 1024:
        raise config.bad(key, "a multiple of 16 from 16 to 1024, or -1")
    return size
