"""Transformers' side: the stream after each layer and the logits, in float32, in bf16, and between.

Transformers in bf16 also keeps the residual stream and the angles of RoPE in bf16, which costs far more than
necessary. So there is a third reference: float32 in which the output of every linear layer and norm is
rounded to bf16, as activations in bf16 must be. Its distance from float32 is called the noise of bf16.
:meth:`Reference.noise` samples it: on other grids, and of recurrent mixers' convolutions and norms as well.
"""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from parity_routing import experts_of


class Seen(NamedTuple):
    """Activations of one sequence of S tokens.

    Attributes:
        streams: residual after the embedding and after each layer, ``[S, D]`` float32, of NumPy or torch.
        logits: logits of the last ``n`` tokens, ``[n, V]`` float32 on the host.
        routes: experts of each mixture, ``[S, K]`` on the host.
        scores: scores of all experts that they were chosen by, ``[S, E]`` of torch; of transformers alone.
    """

    streams: list[Any]
    logits: np.ndarray
    routes: Sequence[np.ndarray] = ()
    scores: Sequence[Any] = ()


class Reference:
    """A model of transformers, computing in float32 and in bf16 from the same weights.

    Args:
        model: float32, its weights representable in bf16.
        device: torch device.
    """

    def __init__(self, model: Any, device: str) -> None:
        torch.set_float32_matmul_precision("highest")
        self._device = device
        self.float32 = model.to(device)
        self.bf16 = copy.deepcopy(model).to(torch.bfloat16)
        if self.bf16._supports_sdpa:  # of attention with sinks there is none
            self.bf16.set_attn_implementation("sdpa")

    def see(
        self, tokens: list[int], dtype: str, *, logits: int = 1, routes: Sequence[np.ndarray] | None = None
    ) -> Seen:
        """Compute one sequence in one go, no cache: ``dtype`` is ``float32``, ``rounded`` or ``bf16``.

        With ``routes`` each mixture takes those experts.
        """
        model = self.bf16 if dtype == "bf16" else self.float32
        ids = torch.tensor([tokens], device=self._device)
        rounding = _rounded(model) if dtype == "rounded" else nullcontext()
        with torch.inference_mode(), rounding, experts_of(routes) as scores, _watched(model) as streams:
            hidden = model.model(ids, use_cache=False).last_hidden_state[0, -logits:]
            found = model.lm_head(hidden).float().cpu().numpy() * _logits_scale(model)
        return Seen(streams, found, routes or (), scores)

    def noise(self, tokens: list[int], seed: int, *, routes: Sequence[np.ndarray] | None = None) -> Seen:
        """Compute one sequence in float32, rounded to bf16 on a grid of its own wherever our kernels round.

        The grid of an activation is bf16's divided by a random factor from 1 to 2: as coarse, but apart.
        """
        ids, random = torch.tensor([tokens], device=self._device), np.random.default_rng(seed)

        def rounded(value: Any) -> Any:
            factor = 1 + random.random()
            return (value * factor).to(torch.bfloat16).to(value.dtype) / factor

        model = self.float32
        with torch.inference_mode(), _rounded_everywhere(model, rounded), experts_of(routes) as scores:
            with _watched(model) as streams:
                hidden = model.model(ids, use_cache=False).last_hidden_state[0, -1:]
            found = model.lm_head(hidden).float().cpu().numpy() * _logits_scale(model)
        return Seen(streams, found, routes or (), scores)

    def close(self) -> None:
        """Give the memory back."""
        del self.float32, self.bf16
        gc.collect()
        if self._device != "cpu":
            import cupy

            torch.cuda.empty_cache()
            cupy.get_default_memory_pool().free_all_blocks()


@contextmanager
def _watched(model: Any) -> Iterator[list[Any]]:
    """Collect what the embedding and each layer return in the forward pass inside the block, in order."""
    streams: list[Any] = []

    def keep(_module: Any, _inputs: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        streams.append(tensor[0].float().clone())

    def keep_scaled(module: Any, inputs: Any, output: Any) -> None:
        keep(module, inputs, output * getattr(model.config, "embedding_multiplier", 1.0))

    with _hooked([model.get_input_embeddings()], keep_scaled), _hooked(model.model.layers, keep):
        yield streams


def _logits_scale(model: Any) -> np.float32:
    """Return what a model multiplies its logits by."""
    factor = getattr(model.config, "lm_head_multiplier", 1.0) / getattr(model.config, "logits_scaling", 1.0)
    return np.float32(factor)


def _rounded(model: Any) -> AbstractContextManager[None]:
    """Round the outputs of linear layers, experts and norms to bf16, except the logits."""
    return _hooked(
        _modules(model, "Experts", "RMSNorm"),
        lambda _module, _inputs, output: output.to(torch.bfloat16).to(output.dtype),
    )


@contextmanager
def _rounded_everywhere(model: Any, rounded: Callable[[Any], Any]) -> Iterator[None]:
    """Round these, gated norms, and the convolutions before a recurrence, which are no modules."""
    file = sys.modules[type(model).__module__]
    convolve = getattr(file, "causal_conv1d_fn", None)
    if convolve is not None:
        file.causal_conv1d_fn = lambda *given, **named: rounded(convolve(*given, **named))
    modules = _modules(model, "Experts", "RMSNorm", "RMSNormGated")
    try:
        with _hooked(modules, lambda _module, _inputs, output: rounded(output)):
            yield
    finally:
        if convolve is not None:
            file.causal_conv1d_fn = convolve


def _modules(model: Any, *names: str) -> list[Any]:
    """Return linear layers, and modules whose classes' names end with one of ``names``."""
    modules = list(model.model.modules())
    assert any(type(module).__name__.endswith("RMSNorm") for module in modules), "norms have another name now"
    return [
        module
        for module in modules
        if isinstance(module, torch.nn.Linear) or type(module).__name__.endswith(names)
    ]


@contextmanager
def _hooked(modules: Iterable[Any], hook: Callable[..., Any]) -> Iterator[None]:
    """Call ``hook`` after each of ``modules`` inside the block."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
