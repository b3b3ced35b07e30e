"""Layers and sizes that a model may have for the kernels of a GPU. Pure."""

from __future__ import annotations

from wisp_plan.errors import LayersUnsupported
from wisp_plan.hardware.kernel_layers import require_kernels
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
    try:
        require_kernels(spec)
    except LayersUnsupported as error:
        raise ModelUnsupported(error.message) from None
