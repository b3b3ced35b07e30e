"""Translation of dense decoders: the keys that Llama, Mistral, Qwen2 and Qwen3 spell alike.

A family's own file names its defaults and switches, and calls :func:`read_dense_decoder`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from wisp_plan.families.reader import MAX_VALUES, ConfigReader
from wisp_plan.families.rope import parse_rope
from wisp_plan.families.windows import Windows
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import ModelSpec, dense_decoder

DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "auto": "BF16"}

ReadWindows = Callable[[ConfigReader, int, int], Windows]
"""``windows(reader, layers, max_context)``: the window of each layer."""


def no_windows(_reader: ConfigReader, layers: int, _max_context: int) -> Windows:
    """Return None for each layer: it attends to the full context."""
    return (None,) * layers


@dataclass(frozen=True, slots=True)
class Biases:
    """Projections that have a bias."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values of keys that a ``config.json`` of the family may leave out.

    Attributes:
        kv_heads: ``num_key_value_heads``; None: as many as query heads.
        head_size: ``head_dim``; None: hidden size over heads.
        bos, eos: token ids.
        rotary_share: ``partial_rotary_factor``.
        inner: ``intermediate_size``; None: it must be there.
    """

    kv_heads: int | None = None
    head_size: int | None = None
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()
    rotary_share: float = 1.0
    inner: int | None = None


def read_dense_decoder(
    reader: ConfigReader,
    architecture: str,
    family: str,
    *,
    biases: Biases,
    windows: ReadWindows = no_windows,
    defaults: Defaults = Defaults(),
    has_qk_norm: bool = False,
) -> ModelSpec:
    """Read a model whose layers are attention and a gated MLP, and equal but for their windows.

    Raises:
        ConfigInvalid: a key is missing, mistyped or impossible.
    """
    heads, kv_heads, head_size = _read_heads(reader, defaults)
    layers, max_context = reader.integer("num_hidden_layers"), reader.integer("max_position_embeddings")
    attention = AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        rope=parse_rope(reader, head_size, defaults.rotary_share),
        has_qkv_bias=biases.qkv,
        has_output_bias=biases.output,
        has_qk_norm=has_qk_norm,
    )
    spec = dense_decoder(
        architecture,
        family,
        layers=layers,
        hidden=reader.integer("hidden_size"),
        inner=reader.integer("intermediate_size", defaults.inner),
        vocab=reader.integer("vocab_size"),
        max_context=max_context,
        attention=attention,
        norm_eps=reader.number("rms_norm_eps", 1e-6),
        has_mlp_bias=biases.mlp,
        ties_embeddings=reader.flag("tie_word_embeddings", False),
        bos_token_id=next(iter(reader.token_ids("bos_token_id", defaults.bos)), None),
        eos_token_ids=reader.token_ids("eos_token_id", defaults.eos),
        dtype=_read_dtype(reader),
    )
    return with_windows(spec, windows(reader, layers, max_context))


def with_windows(spec: ModelSpec, windows: Windows) -> ModelSpec:
    """Return ``spec`` with a window for the attention of each layer."""
    described = zip(spec.layers, windows, strict=True)
    layers = (
        replace(layer, mixer=replace(layer.mixer, window=window))
        if isinstance(layer.mixer, AttentionSpec)
        else layer
        for layer, window in described
    )
    return replace(spec, layers=tuple(layers))


def _read_heads(reader: ConfigReader, defaults: Defaults) -> tuple[int, int, int]:
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    absent = defaults.kv_heads if not reader.has("num_key_value_heads") else None
    kv_heads = reader.integer("num_key_value_heads", absent or heads)
    if heads % kv_heads:
        raise reader.bad(
            "num_key_value_heads",
            f"a divisor of num_attention_heads ({heads}); {kv_heads} does not divide it",
        )
    derived = defaults.head_size
    if derived is None and reader.values.get("head_dim") is None and hidden % heads:
        raise reader.bad("head_dim", f"a head size, as hidden_size {hidden} is no multiple of {heads} heads")
    head_size = reader.integer("head_dim", derived or hidden // heads)
    if head_size > MAX_VALUES["head_dim"]:
        raise reader.bad(
            "head_dim", f"at most {MAX_VALUES['head_dim']} channels a head; it would be {head_size}"
        )
    if head_size % 2:
        raise reader.bad(
            "head_dim", f"an even head size, as RoPE takes pairs of channels; it would be {head_size}"
        )
    return heads, kv_heads, head_size


def _read_dtype(reader: ConfigReader) -> str:
    key = "dtype" if reader.has("dtype") else "torch_dtype"
    name = reader.text(key, "bfloat16").removeprefix("torch.")
    if name not in DTYPES:
        raise reader.bad(key, f"one of {', '.join(DTYPES)}")
    return DTYPES[name]
