"""Read a model's folder: its dimensions, then its tensors into the weights that are declared for it.

Headers are checked whole before memory is allocated, and before a device is needed, so that a GPU's context
can be made meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from wisp_plan.checkpoint.directory import read_config, read_directory
from wisp_plan.checkpoint.index import TensorIndex
from wisp_plan.errors import CheckpointInvalid, CheckpointMissing, ConfigDamaged, ConfigMissing, PlanError
from wisp_plan.spec.model import ModelSpec
from wisp_plan.spec.share import rank_share
from wisp_plan.spec.weight import WeightSpec
from wisp_plan.weights.declaration import declare, shard
from wisp_plan.weights.held import BF16, held_weights, hold
from wisp_plan.weights.stored import as_stored, spec_as_stored
from wisp_plan.weights.tensors import check_tensors, tensors_of
from wisp_plan.weights.unread import neutral_tensors
from wisp_plan.weights.unused import describe_unused
from wisp_runtime.comm.none import NO_COMM
from wisp_runtime.comm.protocol import Comm
from wisp_runtime.errors import ModelNotFound, ModelUnsupported, WeightsUnreadable
from wisp_runtime.models.model import Model
from wisp_runtime.models.registry import model_class
from wisp_runtime.ops.protocol.ops import Ops
from wisp_runtime.weights.arena import Weights
from wisp_runtime.weights.chunks import plan
from wisp_runtime.weights.files import Files
from wisp_runtime.weights.neutral import check_neutral
from wisp_runtime.weights.quantized_chunks import plan_quantized
from wisp_runtime.weights.reader import OnProgress, WeightReader
from wisp_runtime.weights.stated_shapes import check_stated_shapes, stating_files


def read_spec(path: Path) -> ModelSpec:
    """Name every dimension of the model at ``path``: a folder, or a GGUF file.

    Raises:
        ModelNotFound: there is no ``config.json`` and no GGUF file.
        WeightsUnreadable: it is damaged.
        ModelUnsupported: it describes what we cannot run.
    """
    try:
        return read_config(path)
    except (ConfigMissing, CheckpointMissing) as error:
        raise ModelNotFound(error.message) from error
    except (ConfigDamaged, CheckpointInvalid) as error:
        raise WeightsUnreadable(error.message) from error
    except PlanError as error:
        raise ModelUnsupported(error.message) from error


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model whose headers are read and match its config.

    Attributes:
        path: the folder, or a GGUF file.
        spec: dimensions of the model, and the quantized layers that the headers have.
        tensors: index of its tensors.
        weights: the weights that are read from them, in their stored formats.
        unused: parts of it that are not read, for people; empty: there are none.
    """

    path: Path
    spec: ModelSpec
    tensors: TensorIndex
    weights: tuple[WeightSpec, ...]
    unused: str = ""

    @property
    def folder(self) -> Path:
        """Folder of its files."""
        return self.path.parent if self.path.is_file() else self.path

    @property
    def not_read(self) -> str:
        """End of the log's line that says what was read: parts of the checkpoint that were not, if any."""
        return f"; not read: {self.unused}" if self.unused else ""

    def held(self, quantization: str, formats: Collection[str]) -> Checkpoint:
        """Return the checkpoint with the format in which a device holds each weight.

        Args:
            quantization: format of the projections, as :func:`wisp_plan.weights.held.held_format` takes it.
            formats: packed formats that the device has kernels for.
        """
        is_quantized = self.spec.quantization is not None
        return replace(self, weights=hold(self.weights, quantization, formats, is_quantized=is_quantized))

    def load(
        self,
        ops: Ops,
        on_progress: OnProgress | None = None,
        *,
        comm: Comm = NO_COMM,
        is_direct: bool = False,
    ) -> Model:
        """Read the weights into a model on the device of ``ops``.

        The model's own tables (RoPE) are made while threads read.

        Args:
            on_progress: callback for bytes that were read.
            comm: the ranks that share the model; this one's weights are in :attr:`weights`.
            is_direct: whether to read past the page cache.

        Raises:
            WeightsUnreadable: a file is truncated or damaged.
            GpuOutOfMemory: the weights did not fit after all: something else took memory meanwhile.
            RuntimeFailure: any other failure of the device.
        """
        by_name = self.tensors.by_name
        weights = Weights(ops, self.weights)
        wanted = {tensor.name: by_name[tensor.name] for tensor in tensors_of(self.weights)}
        uploader = ops.uploader(sum(tensor.size_bytes for tensor in wanted.values()))
        plans = (make(self.weights, wanted, uploader.chunk_bytes) for make in (plan_quantized, plan))
        chunks = sorted(
            (chunk for chunks in plans for chunk in chunks),
            key=lambda chunk: (chunk.tensor.file, chunk.start),
        )
        names = dict.fromkeys(tensor.file for tensor in wanted.values())
        with (
            Files(self.folder, names, is_direct=is_direct) as files,
            WeightReader(files, chunks, weights, uploader) as reader,
        ):
            model = model_class(self.spec)(rank_share(self.spec, comm.size), weights, ops, comm)
            reader.wait(on_progress or _ignore)
        return model


def open_checkpoint(path: Path, spec: ModelSpec, *, rank: int = 0, ranks: int = 1) -> Checkpoint:
    """Read and check the headers of the checkpoint in ``path``; needs no device.

    Args:
        path: a folder with safetensors files, or a GGUF file.
        spec: dimensions that :func:`read_spec` read there.
        rank, ranks: index of this GPU among those that share the weights, and their number.

    Raises:
        ModelNotFound: there is no checkpoint in the folder.
        WeightsUnreadable: a file is truncated or damaged, or its tensors are not those of the model.
        ModelUnsupported: no code for the family.
    """
    model_class(spec)
    try:
        tensors = read_directory(path)
        unused = describe_unused(tensors.by_name, check_tensors(spec, tensors.by_name).extra)
        spec = spec_as_stored(spec, tensors.by_name)
        weights = as_stored(shard(declare(spec), rank, ranks), tensors.by_name, spec.quantization)
        unread = neutral_tensors(spec, tensors.by_name)
        names = stating_files(weights, tensors.by_name) | {each.tensor.file for each in unread}
        with Files(path, names) as files:
            check_stated_shapes(files, weights, tensors.by_name)
            check_neutral(files, unread)
    except CheckpointMissing as error:
        raise ModelNotFound(error.message) from error
    except PlanError as error:
        raise WeightsUnreadable(f"{path}: {error.message}") from error
    except OSError as error:
        raise WeightsUnreadable(f"{path}: reading the headers failed: {error.strerror}.") from error
    return Checkpoint(path, spec, tensors, weights, unused)


def load_model(
    path: Path,
    spec: ModelSpec,
    ops: Ops,
    on_progress: OnProgress | None = None,
    comm: Comm = NO_COMM,
    *,
    quantization: str = BF16,
    formats: Collection[str] = (),
) -> Model:
    """Read the checkpoint in ``path`` into a model: :func:`open_checkpoint`, then :meth:`Checkpoint.load`.

    Weights are held unquantized, or as :meth:`Checkpoint.held` has them by ``quantization`` and ``formats``.
    """
    checkpoint = open_checkpoint(path, spec, rank=comm.rank, ranks=comm.size)
    return checkpoint.held(quantization, formats).load(ops, on_progress, comm=comm)


def random_model(
    spec: ModelSpec, ops: Ops, seed: int = 0, *, quantization: str = BF16, formats: Collection[str] = ()
) -> Model:
    """Make a model of random weights, without any checkpoint: for measuring at a model's size.

    The same seed gives the same numbers on every device, rounded where they are held quantized.

    Args:
        seed: seed of the weights.
        quantization, formats: arguments of :func:`wisp_plan.weights.held.held_weights`.

    Raises:
        ModelUnsupported: no code for the family.
        GpuOutOfMemory: the weights do not fit.
    """
    decoder = model_class(spec)
    weights = Weights(ops, held_weights(spec, quantization, tuple(formats)))
    weights.randomize(seed)
    return decoder(spec, weights, ops)


def _ignore(_done: int, _total: int) -> None:
    """Report nothing."""
