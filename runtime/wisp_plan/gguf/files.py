"""Files of a model in GGUF: one, or the only one of a folder, or the parts of one that was split.

Apart from :mod:`.model`: a start asks whether a folder holds such a model, and most do not.
"""

from __future__ import annotations

import re
from pathlib import Path

from wisp_plan.checkpoint.index import MAX_FILES
from wisp_plan.errors import CheckpointMissing, ConfigMissing
from wisp_plan.families.config_files import CONFIG_FILE

SUFFIX = ".gguf"
_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_MAX_NAMED = 3


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the GGUF files of the model at ``path``; none if it is a folder of another format, or not there.

    Raises:
        ConfigMissing: a folder with several models.
        CheckpointMissing: a part is missing.
    """
    if path.suffix == SUFFIX and path.is_file():
        return _parts(path)
    if not path.is_dir() or (path / CONFIG_FILE).exists():
        return ()
    files = sorted(file for file in path.iterdir() if file.suffix == SUFFIX and file.is_file())
    models = [
        file for file in files if (part := _PART.fullmatch(file.name)) is None or int(part["number"]) == 1
    ]
    if len(models) > 1:
        named = ", ".join(file.name for file in models[:_MAX_NAMED])
        more = ", …" if len(models) > _MAX_NAMED else ""
        raise ConfigMissing(
            f"{path} holds no {CONFIG_FILE}, but several models in GGUF ({named}{more}). Name "
            f"the file: {models[0]}."
        )
    return _parts((models or files)[0]) if files else ()


def _parts(file: Path) -> tuple[Path, ...]:
    part = _PART.fullmatch(file.name)
    if part is None:
        return (file,)
    count = int(part["count"])
    if count > MAX_FILES:
        raise CheckpointMissing(f"{file} is one of {count} parts; at most {MAX_FILES} are read. Use another.")
    names = [f"{part['name']}-{number:05}-of-{part['count']}{SUFFIX}" for number in range(1, count + 1)]
    missing = [name for name in names if not (file.parent / name).is_file()]
    if missing:
        raise CheckpointMissing(
            f"{file.parent}: {len(missing)} of the {count} parts of the model are missing, among them "
            f"{missing[0]}. Download it again."
        )
    return tuple(file.parent / name for name in names)
