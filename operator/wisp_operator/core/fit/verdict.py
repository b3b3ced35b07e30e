"""Check before any pod exists whether a model fits its device.

The arithmetic is :mod:`wisp_plan`'s, the same that the runtime does against its real memory; this module
translates a spec into a request, and the verdict into ``status.fit``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from wisp_operator.api import Gpu, InferenceModel
from wisp_operator.core.fit.sources import Files
from wisp_operator.core.runtime_state import Ledger
from wisp_operator.errors import SourceError
from wisp_plan.errors import (
    CheckpointInvalid,
    ConfigDamaged,
    ConfigInvalid,
    ConfigMissing,
    LayersUnsupported,
    PlanError,
    RequestInvalid,
)
from wisp_plan.fit import verdict
from wisp_plan.fit.request import FitRequest
from wisp_plan.hardware.catalogue import Card
from wisp_plan.hardware.gpus import DEFAULT_FRACTION, find_card, usable_bytes
from wisp_plan.hardware.kernel_formats import kernel_formats
from wisp_plan.memory.batch_sizes import BATCH_SIZES
from wisp_plan.weights.held import BF16

MAX_MESSAGE_CHARACTERS = 1000


@dataclass(frozen=True, slots=True)
class FitReport:
    """Content of ``status.fit``: the verdict and the numbers behind it.

    Attributes:
        verdict: DoesNotFit for lack of memory, Unsupported if no memory would help; Unknown if the model's
            files or the GPU's memory could not be read.
        message: one sentence; with DoesNotFit and Unsupported it ends in the remedy.
        headroom_bytes: bytes beyond the minimum that serves; negative: bytes missing.
        gpu: name of the checked device, e.g. ``L4`` or ``CPU``.
        basis: source of the numbers, and whether they were computed or measured.
    """

    verdict: Literal["Fits", "DoesNotFit", "Unsupported", "Unknown"]
    message: str
    weights_bytes: int = 0
    kv_bytes_per_token: int = 0
    max_context: int = 0
    max_concurrent_at_context: int = 0
    headroom_bytes: int = 0
    gpu: str = ""
    basis: str = ""

    @property
    def refusal(self) -> Literal["DoesNotFit", "ModelUnsupported"] | None:
        """Reason that forbids starting a pod, as conditions name it; None if a pod may start."""
        if self.verdict == "Unsupported":
            return "ModelUnsupported"
        return "DoesNotFit" if self.verdict == "DoesNotFit" else None


Fault = Literal["", "ModelNotFound", "ModelUnsupported", "WeightsUnreadable"]


@dataclass(frozen=True, slots=True)
class FitResult:
    """Result of a check.

    Attributes:
        report: content of ``status.fit``.
        fault: reason that a pod would give for files that cannot be used; empty where they can, or where a
            pod may be more fortunate.
    """

    report: FitReport
    fault: Fault = ""


@dataclass(frozen=True, slots=True)
class Device:
    """Device that a model is checked against.

    Attributes:
        kind: cpu or cuda.
        name: name in messages: ``L4``, ``this machine``.
        available_bytes: memory that the model may take, CUDA's own context included.
        hardware: generation of the GPU, by its folder of kernels; None is unknown, or the CPU.
    """

    kind: Literal["cpu", "cuda"]
    name: str
    available_bytes: int
    hardware: str | None = None


def device_of(gpu: Gpu) -> Device | None:
    """Find the smallest GPU with kernels that ``spec.gpu`` allows; None if it allows any, or names the CPU.

    Raises:
        UnknownCard: a product is in no catalogue; the message names similar ones.
    """
    if gpu.count == 0:
        return None
    if gpu.product:
        cards = list(map(find_card, gpu.product))
        served = [card for card in cards if kernel_formats(card.hardware)]
        return of_card(min(served or cards, key=lambda card: card.memory_mib))
    if gpu.memory is not None:
        return Device("cuda", f"GPU with {gpu.memory}", int(gpu.memory.bytes * DEFAULT_FRACTION))
    return None


def of_card(card: Card) -> Device:
    """Make a device of a card of the catalogue, with no other process on it."""
    return Device("cuda", card.name, usable_bytes(card), card.hardware)


def plan(model: InferenceModel, files: Files, device: Device) -> verdict.Fit:
    """Compute the whole ledger of a model on a device.

    Raises:
        PlanError: the model cannot be run, or not as its spec asks.
        SourceError: its files could not be read.
    """
    runtime = model.spec.runtime
    if runtime.deterministic and device.hardware not in (None, "hopper"):
        raise RequestInvalid(
            f"deterministic (--deterministic) is for Hopper GPUs (H100, H200), not for {device.name}: "
            "name one in spec.gpu.product, or remove deterministic."
        )
    request = FitRequest(
        max_context=None if runtime.max_context == "auto" else runtime.max_context,
        max_concurrent=None if runtime.max_concurrent == "auto" else runtime.max_concurrent,
        max_auto_concurrent=BATCH_SIZES[-1] if runtime.deterministic else None,
        quantization=runtime.quantization,
        head_quantization=runtime.head_quantization,
        formats_available=kernel_formats(device.hardware) if device.kind == "cuda" else (BF16,),
        kv_dtype=runtime.kv_cache_dtype,
        kv_bf16_layers=runtime.kv_cache_bf16_layers,
        kv_dtypes_available=(BF16,) if runtime.deterministic else None,
        deterministic=runtime.deterministic,
        device=device.kind,
    )
    return verdict.check(
        files.config(),
        request,
        available_bytes=device.available_bytes,
        device_name=device.name,
        tensors=files.tensors(),
    )


def check(model: InferenceModel, files: Files | None, device: Device | None) -> FitReport:
    """Check whether ``model`` fits; never raises, since ``Unknown`` is a verdict too.

    Args:
        files: result of :func:`.sources.files_of`; None if only a pod can read them.
        device: result of :func:`device_of`, or the machine's own; None if unknown.
    """
    return inspect(model, files, device).report


def inspect(model: InferenceModel, files: Files | None, device: Device | None) -> FitResult:
    """Check like :func:`check`, and name the fault of files that cannot be used."""
    report, fault = _inspect(model, files, device)
    return FitResult(replace(report, message=report.message[:MAX_MESSAGE_CHARACTERS]), fault)


def _inspect(model: InferenceModel, files: Files | None, device: Device | None) -> tuple[FitReport, Fault]:
    name = device.name if device else ""
    if files is None:
        scheme = model.spec.model.scheme
        return FitReport("Unknown", f"A {scheme}:// model is measured by its first pod.", gpu=name), ""
    if device is None:
        message = "Any GPU is allowed; name spec.gpu.product or spec.gpu.memory to know before a pod starts."
        if model.spec.gpu.count == 0:
            message = "No node for its pods is known, so its first pod measures whether it fits."
        return FitReport("Unknown", message), ""
    try:
        result = plan(model, files, device)
    except SourceError as error:
        return FitReport("Unknown", str(error), gpu=name), "ModelNotFound"
    except ConfigMissing as error:
        return FitReport("Unknown", error.message, gpu=name), "ModelNotFound"
    except (CheckpointInvalid, ConfigDamaged) as error:
        return FitReport("Unknown", error.message, gpu=name), "WeightsUnreadable"
    except PlanError as error:
        if is_unsupported(error):
            report = FitReport("Unsupported", error.message, gpu=name, basis="config.json")
            return report, "ModelUnsupported"
        return FitReport("DoesNotFit", error.message, gpu=name, basis="config.json"), ""
    return _report(result), ""


def is_unsupported(error: PlanError) -> bool:
    """Return whether a model was read, and no device of this kind, however large, can run it."""
    is_read = not isinstance(error, (ConfigMissing, ConfigDamaged))
    return is_read and isinstance(error, (ConfigInvalid, LayersUnsupported))


def _report(result: verdict.Fit) -> FitReport:
    return FitReport(
        verdict="Fits" if result.fits else "DoesNotFit",
        message=result.message[:1].upper() + result.message[1:] + ".",
        weights_bytes=result.ledger.weights_bytes + result.ledger.scales_bytes,
        kv_bytes_per_token=result.ledger.kv_bytes_per_token,
        max_context=result.max_context,
        max_concurrent_at_context=result.max_concurrent_at_context,
        headroom_bytes=result.headroom_bytes,
        gpu=result.device_name,
        basis=f"computed from the {'weights headers' if result.basis == 'checkpoint' else 'config.json'}",
    )


def measured(ledger: Ledger, gpu: str) -> FitReport:
    """Build the report of a running pod's measurement, the ``ledger`` of its ``/state``."""
    return FitReport(
        verdict="Fits" if ledger.fits else "DoesNotFit",
        message=ledger.message,
        weights_bytes=ledger.weights_bytes,
        kv_bytes_per_token=ledger.kv_bytes_per_token,
        max_context=ledger.max_context,
        max_concurrent_at_context=ledger.max_concurrent_at_context,
        headroom_bytes=ledger.headroom_bytes,
        gpu=gpu,
        basis="measured by a pod",
    )
