"""Errors that the runtime raises on purpose.

RuntimeFailure              reason, message; ends up in the termination log and in /state
├── ConfigError             an invalid setting (exit 2)
├── DoesNotFit              the model needs more memory than is available (exit 3)
├── ModelNotFound           no such directory, repository or revision
├── ModelUnsupported        an architecture, shape or format we cannot run
├── WeightsUnreadable       a truncated, damaged or inconsistent file of the model
├── TokenizerUnreadable     tokenizer.json missing or broken
├── SourceUnreachable       the hub or bucket does not respond, or breaks off; a retry may help
├── AccessDenied            the hub or bucket requires a token or credentials, or others than these
├── CacheUnusable           the cache's folder cannot be written or locked
├── DiskFull                no space for a download or a conversion
├── PortInUse               another process listens on the port
├── ListenFailed            the address cannot be listened on
├── KernelsMissing          no kernels for this GPU, model and quantization
│   └── KernelNotCompiled   there is source for one, and nobody compiled it
├── CompilerMissing         no nvcc where kernels are to be compiled (never in a serving process)
├── CompilationFailed       nvcc refused a kernel
├── GpuUnavailable          no GPU that this process may use, or a driver that is too old
├── GpuOutOfMemory          the GPU has less free memory than requested
├── WorkspaceExhausted      a step required more scratch memory than start-up had allocated: a bug of ours
├── KernelFault             a kernel faulted, such as by an illegal address: a bug of ours
├── DeviceFailed            the GPU or its driver reported a permanent error
├── EngineFailed            an unexpected error in the engine: a bug of ours
├── EngineDied              the engine's process ended without a reason
├── ServerFailed            an unexpected error in the server: a bug of ours
└── ErrorBudgetSpent        too many requests failed within a minute; a new process may help
ShapeError                  an op got arrays of a wrong shape or dtype (a bug of ours, or of a new model)
"""

from __future__ import annotations

from typing import ClassVar


class RuntimeFailure(Exception):
    """A failure with a ``reason`` (the class's name) and a ``message``: error, place, remedy."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    @property
    def reason(self) -> str:
        """CamelCase reason, as status, logs and metrics report it."""
        return type(self).__name__


class ConfigError(RuntimeFailure):
    """An invalid setting."""

    exit_code = 2


class DoesNotFit(RuntimeFailure):
    """The model needs more memory than is available."""

    exit_code = 3


class ModelNotFound(RuntimeFailure):
    """No such directory, repository or revision."""


class ModelUnsupported(RuntimeFailure):
    """An architecture, shape or format we cannot run."""


class WeightsUnreadable(RuntimeFailure):
    """A truncated or inconsistent safetensors file, or a config.json that is not JSON."""


class TokenizerUnreadable(RuntimeFailure):
    """tokenizer.json is missing or broken."""


class SourceUnreachable(RuntimeFailure):
    """The hub or bucket does not respond, or breaks off; a retry may help."""


class AccessDenied(RuntimeFailure):
    """The hub or bucket requires a token or credentials, or others than these."""


class CacheUnusable(RuntimeFailure):
    """The cache's folder cannot be written or locked."""


class DiskFull(RuntimeFailure):
    """No space for a download or a conversion."""


class PortInUse(RuntimeFailure):
    """Another process listens on the port."""


class ListenFailed(RuntimeFailure):
    """The address cannot be listened on."""


class KernelsMissing(RuntimeFailure):
    """No kernels for this GPU, model and quantization."""


class KernelNotCompiled(KernelsMissing):
    """There is source for a kernel, and nobody compiled it."""


class CompilerMissing(RuntimeFailure):
    """No nvcc where kernels are to be compiled (never in a serving process)."""


class CompilationFailed(RuntimeFailure):
    """nvcc refused a kernel."""


class GpuUnavailable(RuntimeFailure):
    """No GPU that this process may use, or a driver that is too old."""


class GpuOutOfMemory(RuntimeFailure):
    """The GPU has less free memory than requested."""


class WorkspaceExhausted(RuntimeFailure):
    """A step required more scratch memory than start-up had allocated: a bug of ours."""


class KernelFault(RuntimeFailure):
    """A kernel faulted, such as by an illegal address: a bug of ours."""


class DeviceFailed(RuntimeFailure):
    """The GPU or its driver reported a permanent error."""


class EngineFailed(RuntimeFailure):
    """An unexpected error in the engine: a bug of ours."""


class EngineDied(RuntimeFailure):
    """The engine's process ended without a reason."""


class ServerFailed(RuntimeFailure):
    """An unexpected error in the server: a bug of ours."""


class ErrorBudgetSpent(RuntimeFailure):
    """Too many requests failed within a minute; a new process may help."""


class ShapeError(ValueError):
    """An op got arrays of a wrong shape or dtype."""
