"""Headers of a model in GGUF for this process: the plan's errors become the runtime's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wisp_plan.checkpoint.directory import gguf_model
from wisp_plan.errors import CheckpointInvalid, CheckpointMissing, ConfigMissing, PlanError
from wisp_runtime.errors import ModelNotFound, ModelUnsupported, WeightsUnreadable

if TYPE_CHECKING:
    from wisp_plan.gguf.model import GGUFModel


def open_gguf(path: Path) -> GGUFModel | None:
    """Read the headers of the model at ``path``; None if it is a folder of another format.

    Raises:
        ModelNotFound: a part is missing, or a folder has several models.
        WeightsUnreadable: a file is damaged.
        ModelUnsupported: a model that is not read from GGUF.
    """
    with reported():
        return gguf_model(path)


@contextmanager
def reported() -> Iterator[None]:
    """Raise the plan's errors on a GGUF file as the runtime's."""
    try:
        yield
    except (ConfigMissing, CheckpointMissing) as error:
        raise ModelNotFound(error.message) from error
    except CheckpointInvalid as error:
        raise WeightsUnreadable(error.message) from error
    except PlanError as error:
        raise ModelUnsupported(error.message) from error
