"""Hardware of this machine: its GPUs, as the driver lists them, and its free memory."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from dataclasses import dataclass

from wisp_operator.api import Gpu, InferenceModel
from wisp_operator.core.fit import sources, verdict
from wisp_operator.core.fit.process import CheckAborted, run_isolated
from wisp_operator.core.fit.worker import FitJob
from wisp_operator.errors import WispError
from wisp_operator.local import config
from wisp_operator.local.pod_template import Device as Choice
from wisp_plan.errors import UnknownCard
from wisp_plan.hardware import host
from wisp_plan.hardware.gpus import DEFAULT_FRACTION, find_card

log = logging.getLogger(__name__)
MIB = 2**20
DRIVER_TIMEOUT_S = 10.0
MAX_CONCURRENT_CHECKS = 4
THIS_MACHINE = "this machine"  # name of its CPU as a device
QUERY = "--query-gpu=name,memory.total,memory.free,driver_version"


class NoGpu(WispError):
    """A GPU was requested, and the driver of this machine lists none."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU of this machine."""

    name: str
    total_bytes: int
    free_bytes: int
    driver: str


def cards() -> list[Card]:
    """List the GPUs of this machine; none where there is no NVIDIA driver, or it does not answer."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        answer = subprocess.run(
            ["nvidia-smi", QUERY, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=DRIVER_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [card for line in answer.stdout.splitlines() if (card := _card(line))]


def free_memory_bytes() -> int:
    """Return the memory that a process could take now, by the same count as a runtime's own check."""
    return host.available_bytes()


def device_for(gpu: Gpu, choice: Choice, gpus: list[Card]) -> verdict.Device:
    """Choose the device of a model on this machine.

    Args:
        gpu: ``spec.gpu``.
        choice: the user's ``--device``.
        gpus: GPUs of this machine.
    """
    wants_gpu = choice == "cuda" or (choice == "auto" and gpu.count > 0)
    if wants_gpu and gpus:
        card = max(gpus, key=lambda card: card.free_bytes)
        return verdict.Device(
            "cuda", card.name, int(card.free_bytes * DEFAULT_FRACTION), _hardware(card.name)
        )
    return verdict.Device("cpu", THIS_MACHINE, int(free_memory_bytes() * DEFAULT_FRACTION))


def require_gpu(choice: Choice, gpus: list[Card]) -> None:
    """Refuse ``--device cuda`` on a machine without a GPU.

    Raises:
        NoGpu: says what to do.
    """
    if choice == "cuda" and not gpus:
        raise NoGpu(
            "--device cuda: nvidia-smi lists no GPU on this machine. Install NVIDIA's driver, 580 or "
            "newer (wisp doctor says what there is), or leave --device out: then models run on the CPU."
        )


@dataclass(frozen=True, slots=True)
class _Answer:
    """Result of a model's last check, and what it depended on."""

    model: InferenceModel
    device: verdict.Device
    result: verdict.FitResult

    def holds(self, model: InferenceModel, device: verdict.Device) -> bool:
        """Return whether ``model`` did not fit, and lacks the memory that it lacked still."""
        report, before = self.result.report, self.device
        if report.verdict != "DoesNotFit" or self.model != model:
            return False
        is_same_kind = (before.kind, before.name) == (device.kind, device.name)
        missing_bytes, more_bytes = -report.headroom_bytes, device.available_bytes - before.available_bytes
        return is_same_kind and (missing_bytes <= 0 or more_bytes < missing_bytes)


class LocalFitChecker:
    """Checks whether models fit this machine.

    Raises:
        NoGpu: ``choice`` wants a GPU, whatever the manifests say, and there is none.
    """

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._cards = cards()
        require_gpu(choice, self._cards)
        self._warned: set[str] = set()
        self._answers: dict[str, _Answer] = {}
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)

    async def __call__(self, model: InferenceModel) -> verdict.FitResult:
        """Check in a child process whether ``model`` fits; may read from the network.

        A model that did not fit is checked again only once the missing memory, or another GPU, is there. Of a
        GPU's free memory the most that was seen since the start counts: this session's pods take of it, and
        give it back; the CPU's is that of now.
        """
        self._cards = _most_free(self._cards, await asyncio.to_thread(cards))
        self._warn_without_gpu(model)
        device = device_for(model.spec.gpu, self._choice, self._cards)
        last = self._answers.get(model.key)
        if last is not None and last.holds(model, device):
            return last.result
        result = await self._check(model, device)
        self._answers[model.key] = _Answer(model, device, result)
        return result

    async def _check(self, model: InferenceModel, device: verdict.Device) -> verdict.FitResult:
        token = config.hub_token() or ""
        job = FitJob(model, {"": device}, hub_endpoint=config.hub_endpoint(), hub_token=token)
        try:
            async with self._semaphore:
                return (await run_isolated(job))[""]
        except CheckAborted as error:
            return verdict.FitResult(verdict.FitReport("Unknown", str(error), gpu=device.name))

    def _warn_without_gpu(self, model: InferenceModel) -> None:
        if (
            self._choice == "auto"
            and model.spec.gpu.count
            and not self._cards
            and model.key not in self._warned
        ):
            self._warned.add(model.key)
            log.warning("%s asks for a GPU, and nvidia-smi lists none: it runs on the CPU.", model.key)


def files_of(model: InferenceModel) -> sources.Files | None:
    """Choose the source of a model's headers, with this machine's hub and token; None if only a pod can.

    Raises:
        SourceError: the configured hub is no URL.
    """
    return sources.files_of(model.spec.model, endpoint=config.hub_endpoint(), token=config.hub_token() or "")


def _most_free(before: list[Card], now: list[Card]) -> list[Card]:
    """Return the GPUs of ``now``, each with the larger free memory; ``before`` if the driver lists none."""
    if [card.name for card in before] != [card.name for card in now]:
        return now or before
    return [max(pair, key=lambda card: card.free_bytes) for pair in zip(before, now, strict=True)]


def _hardware(name: str) -> str | None:
    """Return the generation of a GPU by the driver's name for it; None if it is in no catalogue."""
    try:
        return find_card(name).hardware
    except UnknownCard:
        return None


def _card(line: str) -> Card | None:
    try:
        name, total, free, driver = (field.strip() for field in line.split(","))
        return Card(name, int(total) * MIB, int(free) * MIB, driver)
    except ValueError:  # a card that is lost answers "[N/A]"
        return None
