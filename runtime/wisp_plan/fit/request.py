"""Request of a fit check: the user's settings, before ``auto`` is resolved."""

from __future__ import annotations

from dataclasses import dataclass

from wisp_plan.errors import RequestInvalid
from wisp_plan.hardware.kernel_layers import require_kernels
from wisp_plan.kv_formats.layers import KV_FORMATS, SERVED_KV_FORMATS, KvLayers
from wisp_plan.memory.cache import model_groups, state_stride
from wisp_plan.memory.ledger import LedgerOptions
from wisp_plan.memory.step import MAX_SM_COUNT
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.cache import State
from wisp_plan.spec.model import ModelSpec
from wisp_plan.weights.held import BF16, FP8, ROUNDED, check_rounding
from wisp_plan.weights.sizes import Device


@dataclass(frozen=True, slots=True)
class FitRequest:
    """Settings that determine a model's memory; defaults as on the command line.

    Attributes:
        max_context: tokens a sequence may hold; None is auto.
        max_concurrent: sequences in one step; None is auto (:mod:`.concurrency`).
        max_auto_concurrent: maximum of ``auto``, where the step cannot hold more.
        quantization: format of the weights; auto: as stored (:mod:`wisp_plan.weights.held`).
        head_quantization: format of the head: bf16 or fp8.
        kv_dtype: format of keys and values, or auto.
        kv_bf16_layers: number of first and of last layers whose keys and values stay bf16.
        block_tokens: Tb, tokens per KV block.
        max_step_tokens: tokens a step may compute; None is auto (:mod:`wisp_plan.memory.limits`).
        device: device of the model; on ``cpu`` weights, keys and values are float32.
        kv_cache_bytes: size of the KV cache; None is auto.
        context_bytes: size of the CUDA context if the available bytes were measured before it was made, 0 if
            after; None: the ledger's estimate.
        sm_count: SMs of the GPU; None: not known yet.
        formats_available: bf16 and the packed formats that the device has kernels for, nothing else is chosen
            or proposed; and W8A8 (:mod:`wisp_plan.hardware.kernel_formats`).
        kv_dtypes_available: likewise for keys and values; None: those of the device.
        deterministic: whether the mode of that name is asked for.
    """

    max_context: int | None = None
    max_concurrent: int | None = None
    max_auto_concurrent: int | None = None
    quantization: str = "auto"
    head_quantization: str = BF16
    kv_dtype: str = "auto"
    kv_bf16_layers: int = 0
    block_tokens: int = 16
    max_step_tokens: int | None = None
    device: Device = "cuda"
    kv_cache_bytes: int | None = None
    context_bytes: int | None = None
    sm_count: int | None = None
    formats_available: tuple[str, ...] = ("bf16",)
    kv_dtypes_available: tuple[str, ...] | None = None
    deterministic: bool = False

    @property
    def sequences(self) -> int:
        """Sequences in one step, of a request in which that is resolved."""
        assert self.max_concurrent is not None, "auto is resolved first (concurrency.py)"
        return self.max_concurrent

    @property
    def requests(self) -> tuple[str, ...]:
        """Weight formats that can be asked for."""
        return BF16, *(name for name in ROUNDED if name in self.formats_available)

    @property
    def weights(self) -> str:
        """Request of :func:`.held.held_format`."""
        head = self.head_quantization
        return self.quantization if head == BF16 else f"{self.quantization}+{head}"

    @property
    def has_kernels(self) -> bool:
        """Whether the runtime has kernels for the device at all."""
        return self.device == "cpu" or bool(self.formats_available)

    @property
    def kv_formats(self) -> tuple[str, ...]:
        """KV formats that the runtime can serve."""
        available = self.kv_dtypes_available
        return SERVED_KV_FORMATS[self.device] if available is None else available

    @property
    def kv_format(self) -> str:
        """Format of keys and values in memory, by name."""
        name = "bf16" if self.kv_dtype == "auto" else self.kv_dtype
        return "float32" if self.device == "cpu" and name == "bf16" else name

    @property
    def kv(self) -> KvLayers:
        """Formats of the layers' keys and values."""
        return KvLayers.of(self.kv_format, self.device, self.kv_bf16_layers)

    def ledger_options(self, max_context: int, kv_blocks: int, max_step_tokens: int) -> LedgerOptions:
        """Put this request and what was decided about it into the ledger's terms."""
        return LedgerOptions(
            device=self.device,
            quantization=self.weights,
            formats=self.formats_available,
            kv_dtype=self.kv_format,
            kv_blocks=kv_blocks,
            block_tokens=self.block_tokens,
            max_context=max_context,
            max_concurrent=self.sequences,
            max_step_tokens=max_step_tokens,
            context_bytes=self.context_bytes,
            sm_count=self.sm_count or MAX_SM_COUNT,
            kv_bf16_layers=self.kv_bf16_layers,
            deterministic=self.deterministic,
        )

    def check(self, spec: ModelSpec) -> None:
        """Refuse what no amount of memory would satisfy.

        Raises:
            RequestInvalid: names the setting, its value and what is possible.
        """
        for name in ("max_concurrent", "block_tokens", "max_step_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RequestInvalid(f"{_both(name)} is {value}; it must be at least 1.")
        if self.max_context is not None and not 1 <= self.max_context <= spec.max_context:
            raise RequestInvalid(
                f"{_both('max_context')} is {self.max_context}; this model can hold 1 to {spec.max_context} "
                "tokens. Set it within that, or to auto."
            )
        if self.device == "cuda":
            require_kernels(spec)
            check_rounding(spec, self.quantization)
        if self.has_kernels or self.quantization not in ("auto", BF16):
            _check_choice(_both("quantization"), self.quantization, self.requests if self.has_kernels else ())
        self._check_head()
        if self.deterministic:
            self._check_deterministic(spec)
        _check_choice(_both("kv_cache_dtype"), self.kv_dtype, self.kv_formats)
        self._check_kv(spec)

    def _check_deterministic(self, spec: ModelSpec) -> None:
        """Refuse what would make a request's bits depend on others."""
        if self.kv_dtype in KV_FORMATS and self.kv.inner.is_quantized:
            raise RequestInvalid(
                f"{_both('deterministic')} takes bf16 keys and values alone: set "
                f"{_both('kv_cache_dtype')} to auto, or remove deterministic."
            )
        stride, tokens = self.prompt_stride(spec), self.max_step_tokens
        if tokens is not None and tokens < stride:
            raise RequestInvalid(
                f"{_both('max_step_tokens')} is {tokens}; {_both('deterministic')} computes prompts of "
                f"hybrids in chunks of {stride} tokens. Set it to {stride} or more, or to auto."
            )

    def prompt_stride(self, spec: ModelSpec) -> int:
        """Return the tokens at whose multiples steps may divide a prompt."""
        if not self.deterministic:
            return 1
        has_state = any(isinstance(group.spec, State) for group in model_groups(spec, self.kv))
        return state_stride(self.block_tokens) if has_state else 1

    def _check_head(self) -> None:
        """Refuse a format of the head that has no kernels."""
        if self.head_quantization in (BF16, *({FP8} & set(self.formats_available))):
            return
        raise RequestInvalid(
            f"{_both('head_quantization')} is {self.head_quantization}, but this device has no kernels for "
            "that. Set it to bf16."
        )

    def _check_kv(self, spec: ModelSpec) -> None:
        """Refuse heads that a KV format cannot hold, and unquantized layers that leave none for it."""
        kv_format, layers = self.kv.inner, len(spec.layers)
        if self.kv_bf16_layers and not kv_format.is_quantized:
            raise RequestInvalid(
                f"{_both('kv_cache_bf16_layers')} is {self.kv_bf16_layers}, and all layers are bf16 already: "
                f"set {_both('kv_cache_dtype')} to a smaller format, or leave it out."
            )
        if not 0 <= 2 * self.kv_bf16_layers < layers:
            raise RequestInvalid(
                f"{_both('kv_cache_bf16_layers')} is {self.kv_bf16_layers}; of this model's {layers} layers "
                f"0 to {(layers - 1) // 2} at either end can stay bf16."
            )
        if self.device == "cuda" and kv_format.is_quantized and self.block_tokens % 16:
            raise RequestInvalid(
                f"{_both('block_tokens')} is {self.block_tokens}; with {kv_format.name} keys and "
                "values it must be a multiple of 16 on a GPU, such as 16."
            )
        for mixer in spec.mixers(AttentionSpec):
            multiple = 16 if self.device == "cuda" and kv_format.is_quantized else kv_format.channel_multiple
            if mixer.head_size % multiple:
                raise RequestInvalid(
                    f"{_both('kv_cache_dtype')}: {kv_format.name} holds heads of a multiple of "
                    f"{multiple} channels, this model's have {mixer.head_size}. Set it to bf16."
                )


def _check_choice(name: str, value: str, available: tuple[str, ...]) -> None:
    if not available:
        raise RequestInvalid(
            f"{name}: there are no kernels for this device, so no format can be served on it. Choose "
            "another card, such as an H200 (wisp fit --gpu h200)."
        )
    if value not in ("auto", *available):
        raise RequestInvalid(
            f"{name}: {value} cannot be served on this device yet; available: {', '.join(available)}. "
            "Set it to one of these, or to auto."
        )


def _both(name: str) -> str:
    """A setting as an InferenceModel and as the command line name it: ``maxContext (--max-context)``."""
    first, *rest = name.split("_")
    camel = first + "".join(word.capitalize() for word in rest)
    return f"{camel} (--{name.replace('_', '-')})"
