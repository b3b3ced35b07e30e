"""Quantize a checkpoint: read a folder, write another file by file, after those of an interrupted run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wisp_plan.gguf.model import SUFFIX, convert_command
from wisp_runtime.errors import ConfigError, ModelUnsupported
from wisp_runtime.models.load import Checkpoint, open_checkpoint, read_spec
from wisp_runtime.ops.cpu.threads import available_threads
from wisp_runtime.quantize.formats import TARGETS, TargetFormat
from wisp_runtime.quantize.plan import CheckpointPlan, KeptLayer, plan_checkpoint
from wisp_runtime.quantize.shards import Shard, index_of, plan_shards, size_bytes, write_shard
from wisp_runtime.quantize.target_folder import VERSION, fingerprint, finish, open_target
from wisp_runtime.quantize.work import Worker
from wisp_runtime.sources.disk import require_space
from wisp_runtime.weights.files import Files

SHARD_BYTES = 4 << 30
_SPARE_BYTES = 64 << 20

OnProgress = Callable[[int, int], None]
"""``on_progress(bytes_done, total_bytes)`` of the source's weights."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a quantization.

    Attributes:
        to: name of the format.
        shard_bytes: size of a file of the result, at most.
        threads: threads that encode; None: one a CPU.
    """

    to: str
    shard_bytes: int = SHARD_BYTES
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Quantized:
    """Result of a quantization.

    Attributes:
        folder: folder of the result.
        layers: number of projections that were quantized.
        kept: projections that were not, and the reasons.
        source_bytes, result_bytes: bytes of all weights before and after.
        files: files of weights; of them ``resumed`` were there from an earlier run.
    """

    folder: Path
    layers: int
    kept: tuple[KeptLayer, ...]
    source_bytes: int
    result_bytes: int
    files: int
    resumed: int


def quantize(
    source: Path, target: Path, options: Options, on_progress: OnProgress | None = None
) -> Quantized:
    """Quantize the checkpoint in ``source`` into the folder ``target``.

    An interrupted run leaves complete files, and the same call goes on after them; the result is the same to
    the byte.

    Raises:
        ConfigError: ``target`` is in use, or ``source`` no folder.
        ModelNotFound, WeightsUnreadable: no checkpoint there, or a damaged one.
        ModelUnsupported: a model that cannot run, or is quantized already.
        DiskFull: too little free space for the result.
    """
    checkpoint = _open(source)
    form = TARGETS[options.to]
    plan = plan_checkpoint(checkpoint.spec, checkpoint.tensors.by_name, form)
    if not plan.quantized:
        raise ModelUnsupported(
            f"{source}: no layer can be quantized to {form.name}. {plan.kept[0].layer}: "
            f"{plan.kept[0].reason}. Choose another format."
        )
    shards = plan_shards(plan.items, options.shard_bytes)
    with open_target(target, _settings(checkpoint, options)):
        resumed = _write(checkpoint, target, shards, options, on_progress or _ignore)
        index = index_of(shards) if len(shards) > 1 else None
        finish(source, target, _config(source, plan, form), index)
    return Quantized(
        target,
        len(plan.quantized),
        plan.kept,
        checkpoint.tensors.tensor_bytes,
        sum(map(_shard_bytes, shards)),
        len(shards),
        resumed,
    )


def _open(source: Path) -> Checkpoint:
    if source.suffix == SUFFIX and source.is_file():
        raise ConfigError(
            f"{source} is GGUF. Convert it first: {convert_command(source)}; then quantize that folder."
        )
    spec = read_spec(source)
    if spec.quantization is not None:
        raise ModelUnsupported(
            f"{source} is quantized already ({spec.quantization.method}). Quantize the original in 16 bits."
        )
    return open_checkpoint(source, spec)


def _settings(checkpoint: Checkpoint, options: Options) -> Mapping[str, object]:
    return {
        "version": VERSION,
        "format": options.to,
        "shard size": options.shard_bytes,
        "source": fingerprint(checkpoint.path, checkpoint.tensors),
    }


def _write(
    checkpoint: Checkpoint, target: Path, shards: tuple[Shard, ...], options: Options, on_progress: OnProgress
) -> int:
    """Write the shards that are missing; return how many were not."""
    missing = [shard for shard in shards if not (target / shard.file).exists()]
    require_space(target, sum(map(_shard_bytes, missing)) + _SPARE_BYTES, "quantizing")
    threads = options.threads or available_threads()
    total = sum(shard.source_bytes for shard in shards)
    done = total - sum(shard.source_bytes for shard in missing)
    on_progress(done, total)

    def advance(size: int) -> None:
        nonlocal done
        done += size
        on_progress(done, total)

    with Files(checkpoint.path, checkpoint.tensors.files) as files:
        worker = Worker(files, TARGETS[options.to], threads)
        for shard in missing:
            write_shard(target / shard.file, shard, worker.jobs(shard), threads, advance)
    return len(shards) - len(missing)


def _shard_bytes(shard: Shard) -> int:
    return sum(map(size_bytes, shard.tensors))


def _config(source: Path, plan: CheckpointPlan, form: TargetFormat) -> dict[str, Any]:
    config = json.loads((source / "config.json").read_bytes())
    return {**config, "quantization_config": plan.section(form)}


def _ignore(_done: int, _total: int) -> None:
    """Report nowhere."""
