"""Quantize a checkpoint: read a folder, write another file by file, after those of an interrupted run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from wisp_plan.families.config_files import CONFIG_FILE
from wisp_plan.gguf.files import SUFFIX
from wisp_plan.gguf.model import convert_command
from wisp_runtime.errors import ConfigError, ModelUnsupported, TokenizerUnreadable
from wisp_runtime.models.load import Checkpoint, open_checkpoint, read_spec
from wisp_runtime.models.text_tokens import read_tokens
from wisp_runtime.ops.cpu.ops import CpuOps
from wisp_runtime.ops.cpu.threads import available_threads
from wisp_runtime.quantize.calibration import Calibration
from wisp_runtime.quantize.factors import TensorFactors
from wisp_runtime.quantize.formats import TARGETS, TargetFormat
from wisp_runtime.quantize.layer_inputs import LayerRunner
from wisp_runtime.quantize.plan import CheckpointPlan, KeptLayer, plan_checkpoint
from wisp_runtime.quantize.shards import Shard, index_of, plan_shards, size_bytes, write_shard
from wisp_runtime.quantize.target_folder import VERSION, disk_failures, fingerprint, finish, open_target
from wisp_runtime.quantize.work import Worker
from wisp_runtime.sources.disk import require_space
from wisp_runtime.weights.files import Files

Method = Literal["rtn", "awq"]
DEFAULT_METHODS: dict[str, Method] = {"fp8": "rtn", "int8": "rtn", "int4": "awq", "nvfp4": "awq"}
SHARD_BYTES = 4 << 30
MAX_TOKENS = 2048
"""Tokens of a calibration text that are used."""
_SPARE_BYTES = 64 << 20

OnProgress = Callable[[int, int], None]
"""``on_progress(bytes_done, total_bytes)`` of the source's weights."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a quantization.

    Attributes:
        to: name of the format.
        method: ``rtn``, round to nearest, or ``awq``, activation-aware; None: that of
            :data:`DEFAULT_METHODS`.
        calibration: text that activations are taken from; empty: the one that is shipped.
        shard_bytes: size of a file of the result, at most.
        threads: threads that encode; None: one a CPU.
    """

    to: str
    method: Method | None = None
    calibration: str = ""
    shard_bytes: int = SHARD_BYTES
    threads: int | None = None

    @property
    def uses_activations(self) -> bool:
        """Whether a calibration run chooses scales."""
        return (self.method or DEFAULT_METHODS[self.to]) == "awq"


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
    source: Path,
    target: Path,
    options: Options,
    on_progress: OnProgress | None = None,
    on_layer: OnProgress | None = None,
) -> Quantized:
    """Quantize the checkpoint in ``source`` into the folder ``target``.

    An interrupted run leaves complete files, and the same call goes on after them; the result is the same to
    the byte.

    Args:
        on_progress: callback for bytes that were quantized.
        on_layer: callback for layers that were calibrated.

    Raises:
        ConfigError: ``target`` is in use or cannot be written, or ``source`` is no folder.
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
    tokens = _tokens(checkpoint, options) if options.uses_activations else []
    with (
        disk_failures(target),
        Files(checkpoint.path, checkpoint.tensors.files) as files,
        open_target(target, _settings(checkpoint, options)) as state,
    ):
        worker = Worker(files, form, options.threads or available_threads())
        if tokens:
            worker.factors = _calibrate(checkpoint, plan, worker, tokens, state, on_layer or _ignore)
        resumed = _write(worker, target, shards, on_progress or _ignore)
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
    ggufs = [source] if source.suffix == SUFFIX else sorted(source.glob(f"*{SUFFIX}"))
    if source.is_file() and source not in ggufs:
        raise ConfigError(f"{source} is a file. Name the folder of the checkpoint that it belongs to.")
    if ggufs and not (source / CONFIG_FILE).exists():
        raise ConfigError(
            f"{source} is GGUF. Convert it first: {convert_command(ggufs[0])}; then quantize that folder."
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
        "method": "awq" if options.uses_activations else "rtn",
        "calibration text": hashlib.sha256((options.calibration or shipped_text()).encode()).hexdigest()
        if options.uses_activations
        else None,
        "shard size": options.shard_bytes,
        "source": fingerprint(checkpoint.path, checkpoint.tensors),
    }


def _tokens(checkpoint: Checkpoint, options: Options) -> list[int]:
    """Return the tokens of the calibration text."""
    try:
        tokens = read_tokens(checkpoint.path, options.calibration or shipped_text(), checkpoint.spec.vocab)
    except TokenizerUnreadable as error:
        raise TokenizerUnreadable(f"{error.message} Or quantize without a text: --method rtn.") from error
    return tokens[:MAX_TOKENS]


def _calibrate(
    checkpoint: Checkpoint,
    plan: CheckpointPlan,
    worker: Worker,
    tokens: list[int],
    state: Path,
    on_layer: OnProgress,
) -> Mapping[str, TensorFactors]:
    runner = LayerRunner(checkpoint, worker.files, CpuOps(worker.threads))
    items = {item.source.name: item for item in plan.quantized}
    calibration = Calibration(runner, worker, items, checkpoint.tensors.by_name)
    return calibration.run(checkpoint.spec, tokens, state, on_layer)


def shipped_text() -> str:
    """Return the calibration text that is shipped: prose, code and questions in English."""
    return resources.files("wisp_runtime.quantize").joinpath("calibration.txt").read_text(encoding="utf-8")


def _write(worker: Worker, target: Path, shards: tuple[Shard, ...], on_progress: OnProgress) -> int:
    """Write the shards that are missing; return how many were not."""
    missing = [shard for shard in shards if not (target / shard.file).exists()]
    require_space(target, sum(map(_shard_bytes, missing)) + _SPARE_BYTES, "quantizing")
    total = sum(shard.source_bytes for shard in shards)
    done = total - sum(shard.source_bytes for shard in missing)
    on_progress(done, total)

    def advance(size: int) -> None:
        nonlocal done
        done += size
        on_progress(done, total)

    for shard in missing:
        write_shard(target / shard.file, shard, worker.jobs(shard), worker.threads, advance)
    return len(shards) - len(missing)


def _shard_bytes(shard: Shard) -> int:
    return sum(map(size_bytes, shard.tensors))


def _config(source: Path, plan: CheckpointPlan, form: TargetFormat) -> dict[str, Any]:
    config = json.loads((source / CONFIG_FILE).read_bytes())
    return {**config, "quantization_config": plan.section(form)}


def _ignore(_done: int, _total: int) -> None:
    """Report nowhere."""
