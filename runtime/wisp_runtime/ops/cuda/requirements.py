"""Layers and sizes that a model may have for the kernels of a GPU. Pure."""

from __future__ import annotations

from wisp_plan.hardware.kernel_layers import missing_kernels
from wisp_plan.hardware.kernel_limits import excessive_sizes
from wisp_plan.spec.model import ModelSpec
from wisp_runtime.errors import ConfigError, ModelUnsupported


def require_model(spec: ModelSpec, block_tokens: int) -> None:
    """Refuse layers and sizes that no kernel takes, before anything is loaded.

    Raises:
        ConfigError: KV blocks of ``block_tokens`` tokens.
        ModelUnsupported: the model has such a layer or size.
    """
    if block_tokens % 8:
        raise ConfigError(f"--block-tokens {block_tokens}: must be a multiple of 8 on a GPU, such as 16.")
    if problems := (*missing_kernels(spec), *excessive_sizes(spec)):
        raise ModelUnsupported(
            f"no kernel for this model: {'; '.join(problems)}. Serve it with --device cpu."
        )
