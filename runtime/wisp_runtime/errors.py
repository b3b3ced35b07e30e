"""Every error the runtime raises on purpose.

RuntimeFailure              reason, message; ends up in the termination log and in /state
├── ConfigError             a setting that cannot be (exit 2)
├── DoesNotFit              the model needs more memory than there is (exit 3)
├── ModelNotFound           no such directory, repository or revision
├── ModelUnsupported        an architecture, shape or format we cannot run
├── WeightsUnreadable       a truncated or inconsistent safetensors file
├── TokenizerUnreadable     tokenizer.json missing or broken
├── SourceUnreachable       the hub or bucket gives no answer, or breaks off; later it may
├── AccessDenied            the hub or bucket wants a token or credentials, or others than these
├── CacheUnusable           the cache's folder cannot be written or locked
├── DiskFull                no space for a download or a conversion
├── PortInUse               another process listens there
├── ListenFailed            the address is not ours to listen on
├── KernelsMissing          no kernels for this GPU, model and quantization
├── CompilerMissing         no nvcc where kernels are to be compiled (never in a serving process)
├── CompilationFailed       nvcc refused a kernel
├── GpuUnavailable          no GPU that this process may use, or a driver that is too old
├── GpuOutOfMemory          the GPU has less free memory than was asked for
├── WorkspaceExhausted      a step wanted more scratch memory than start-up had allocated: a bug of ours
├── KernelFault             a kernel did what it must not, such as reading a wrong address: a bug of ours
├── DeviceFailed            the GPU or its driver reported an error that does not go away
├── EngineFailed            the engine met what it did not expect: a bug of ours
├── EngineDied              the engine's process ended without saying why
├── ServerFailed            the server met what it did not expect: a bug of ours
└── ErrorBudgetSpent        too many requests failed within a minute; a new process may do better
ShapeError                  an op was given arrays it cannot take (a bug of ours, or of a new model)
"""

from __future__ import annotations

from typing import ClassVar


class RuntimeFailure(Exception):
    """A failure with a name: ``reason`` is the class's own, ``message`` says what, where, and what to do."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def reason(self) -> str:
        """The CamelCase word that status, logs and metrics use."""
        return type(self).__name__


class ConfigError(RuntimeFailure):
    """A setting that cannot be."""

    exit_code = 2


class DoesNotFit(RuntimeFailure):
    """The model needs more memory than there is."""

    exit_code = 3


class ModelNotFound(RuntimeFailure):
    """No such directory, repository or revision."""


class ModelUnsupported(RuntimeFailure):
    """An architecture, shape or format we cannot run."""


class WeightsUnreadable(RuntimeFailure):
    """A truncated or inconsistent safetensors file."""


class TokenizerUnreadable(RuntimeFailure):
    """tokenizer.json is missing or broken."""


class SourceUnreachable(RuntimeFailure):
    """The hub or bucket gives no answer, or breaks off; later it may."""


class AccessDenied(RuntimeFailure):
    """The hub or bucket wants a token or credentials, or others than these."""


class CacheUnusable(RuntimeFailure):
    """The cache's folder cannot be written or locked."""


class DiskFull(RuntimeFailure):
    """No space for a download or a conversion."""


class PortInUse(RuntimeFailure):
    """Another process listens on the port."""


class ListenFailed(RuntimeFailure):
    """The address is not ours to listen on."""


class KernelsMissing(RuntimeFailure):
    """No kernels for this GPU, model and quantization."""


class CompilerMissing(RuntimeFailure):
    """No nvcc where kernels are to be compiled (never in a serving process)."""


class CompilationFailed(RuntimeFailure):
    """nvcc refused a kernel."""


class GpuUnavailable(RuntimeFailure):
    """No GPU that this process may use, or a driver that is too old."""


class GpuOutOfMemory(RuntimeFailure):
    """The GPU has less free memory than was asked for."""


class WorkspaceExhausted(RuntimeFailure):
    """A step wanted more scratch memory than start-up had allocated: a bug of ours."""


class KernelFault(RuntimeFailure):
    """A kernel did what it must not, such as reading a wrong address: a bug of ours."""


class DeviceFailed(RuntimeFailure):
    """The GPU or its driver reported an error that does not go away."""


class EngineFailed(RuntimeFailure):
    """The engine met what it did not expect: a bug of ours."""


class EngineDied(RuntimeFailure):
    """The engine's process ended without saying why."""


class ServerFailed(RuntimeFailure):
    """The server met what it did not expect: a bug of ours."""


class ErrorBudgetSpent(RuntimeFailure):
    """Too many requests failed within a minute; a new process may do better."""


class ShapeError(ValueError):
    """An op was given arrays it cannot take."""
