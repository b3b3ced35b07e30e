"""Devices by name: ``cpu``, ``cuda``, and others that a test registers.

``auto`` is a GPU if one can serve, else the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from wisp_plan.distribution import install_command
from wisp_runtime.errors import GpuUnavailable
from wisp_runtime.ops.protocol.device import ContextPrefetch, Device

DeviceFactory = Callable[[int | None], Device]
"""Opens a device, given the CPU threads that it may use (None: by measurement)."""

_MIN_CAPABILITY = 8, 0  # the first that computes in bf16


def register(name: str, factory: DeviceFactory) -> None:
    """Make ``factory`` the device ``name``."""
    _FACTORIES[name] = factory


def unregister(name: str) -> None:
    """Forget the device ``name``."""
    del _FACTORIES[name]


def start_context(device: str) -> ContextPrefetch | None:
    """Start making the context of a GPU, if ``device`` may mean one: it takes longer than anything else."""
    return _prefetch() if device in ("auto", "cuda") else None


def open_device(device: str, *, threads: int | None = None, context: ContextPrefetch | None = None) -> Device:
    """Open ``device``.

    Args:
        device: a registered name; or ``auto``: a GPU with bf16 if CuPy is installed, else the CPU.
        threads: CPU threads; None leaves their number to a measurement for the model.
        context: the result of :func:`start_context`; None starts now.

    Raises:
        GpuUnavailable: ``cuda``, and there is no GPU that we may use, or CuPy is not installed.
        KernelsMissing: ``cuda``, and there are no kernels for the GPU.
    """
    if device == "auto":
        device = "cuda" if _can_serve(context) else "cpu"
    return _FACTORIES[device](threads)


def _can_serve(context: ContextPrefetch | None) -> bool:
    """Return whether CuPy is installed and the GPU computes in bf16."""
    if find_spec("cupy") is None:
        return False
    capability = (context or _prefetch()).wait()
    return capability is not None and capability >= _MIN_CAPABILITY


def _prefetch() -> ContextPrefetch:
    from wisp_runtime.ops.cuda.device import context_prefetch

    return context_prefetch.ContextPrefetch()


def _cpu(threads: int | None) -> Device:
    from wisp_runtime.ops.cpu.cpu_device import CpuDevice  # NumPy loads only when it is going to be used

    return CpuDevice(threads)


def _cuda(_threads: int | None) -> Device:
    try:
        from wisp_runtime.ops.cuda.cuda_device import (
            CudaDevice,  # CuPy loads only when it is going to be used
        )
    except ImportError as error:
        raise GpuUnavailable(
            f"--device cuda: {error}. Run {install_command('cuda')}, or use Wisp's image; "
            "without a GPU, set --device cpu."
        ) from error
    return CudaDevice.open()


_FACTORIES: dict[str, DeviceFactory] = {"cpu": _cpu, "cuda": _cuda}
