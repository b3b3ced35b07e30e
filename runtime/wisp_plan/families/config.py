"""Turn a Hugging Face ``config.json`` into a :class:`~wisp_plan.spec.model.ModelSpec`.

Pure: a mapping in, a frozen dataclass out; what cannot run is refused here, before a byte of weights
is read. Defaults for absent keys are those of the ``Config`` classes of transformers 5, per family.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wisp_plan.errors import ConfigInvalid, UnknownArchitecture
from wisp_plan.families.reader import REMEDY, ConfigReader
from wisp_plan.families.rope import parse_rope
from wisp_plan.spec.model import ModelSpec

DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "auto": "BF16"}


def parse_config(config: Mapping[str, object]) -> ModelSpec:
    """Name every dimension of the model that ``config`` describes.

    Args:
        config: ``config.json``, parsed.

    Raises:
        UnknownArchitecture: none of ``architectures`` is one we run.
        ConfigInvalid: a key is missing, mistyped, impossible, or asks for what we cannot run.
    """
    if not isinstance(config, Mapping):
        raise ConfigInvalid(f"config.json holds a {type(config).__name__}; expected an object. {REMEDY}")
    reader = ConfigReader(config)
    architecture = _architecture(reader)
    family = FAMILIES[architecture]
    _refuse_what_cannot_run(reader)
    heads, kv_heads, head_size = _heads(reader, family)
    layers, max_context = reader.integer("num_hidden_layers"), reader.integer("max_position_embeddings")
    qkv_bias, output_bias, mlp_bias = family.biases(reader)
    return ModelSpec(
        architecture=architecture,
        family=family.name,
        layers=layers,
        hidden=reader.integer("hidden_size"),
        mlp=reader.integer("intermediate_size"),
        vocab=reader.integer("vocab_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        max_context=max_context,
        norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope=parse_rope(reader, head_size),
        ties_embeddings=reader.flag("tie_word_embeddings", False),
        has_qkv_bias=qkv_bias,
        has_output_bias=output_bias,
        has_mlp_bias=mlp_bias,
        has_qk_norm=family.has_qk_norm,
        sliding_window=family.window(reader, layers, max_context),
        bos_token_id=next(iter(reader.token_ids("bos_token_id", family.bos)), None),
        eos_token_ids=reader.token_ids("eos_token_id", family.eos),
        dtype=_dtype(reader),
    )


def _architecture(reader: ConfigReader) -> str:
    listed = reader.values.get("architectures")
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
        raise reader.bad("architectures", "a list such as ['LlamaForCausalLM']")
    for name in listed:
        if name in FAMILIES:
            return str(name)
    raise UnknownArchitecture(
        f"config.json: architecture {', '.join(listed)} is not supported; supported: {', '.join(FAMILIES)}. "
        "Choose a model of one of these.",
        key="architectures",
    )


def _refuse_what_cannot_run(reader: ConfigReader) -> None:
    activation = reader.text("hidden_act", "silu")
    if activation != "silu":
        raise ConfigInvalid(
            f"config.json: hidden_act is '{activation}'; only 'silu' is supported. Choose a model with it.",
            key="hidden_act",
        )
    quantized = reader.section("quantization_config")
    if quantized is not None:
        method = quantized.values.get("quant_method", "an unnamed method")
        raise ConfigInvalid(
            f"config.json: quantization_config says that the checkpoint is already quantized ({method}); "
            "such weights cannot be read yet. Use the repository of the unquantized model.",
            key="quantization_config",
        )


def _heads(reader: ConfigReader, family: Family) -> tuple[int, int, int]:
    hidden, heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    absent = family.default_kv_heads if not reader.has("num_key_value_heads") else None
    kv_heads = reader.integer("num_key_value_heads", absent or heads)
    if heads % kv_heads:
        raise reader.bad(
            "num_key_value_heads",
            f"a divisor of num_attention_heads ({heads}); {kv_heads} does not divide it",
        )
    derived = family.default_head_size
    if derived is None and reader.values.get("head_dim") is None and hidden % heads:
        raise reader.bad("head_dim", f"a head size, as hidden_size {hidden} is no multiple of {heads} heads")
    head_size = reader.integer("head_dim", derived or hidden // heads)
    if head_size % 2:
        raise reader.bad(
            "head_dim", f"an even head size, as pairs of channels rotate; it would be {head_size}"
        )
    return heads, kv_heads, head_size


def _dtype(reader: ConfigReader) -> str:
    key = "dtype" if reader.has("dtype") else "torch_dtype"
    name = reader.text(key, "bfloat16").removeprefix("torch.")
    if name not in DTYPES:
        raise reader.bad(key, f"one of {', '.join(DTYPES)}")
    return DTYPES[name]


Biases = tuple[bool, bool, bool]
"""Whether there are biases on q, k and v; on the attention's output; in the MLP."""


def _llama_biases(reader: ConfigReader) -> Biases:
    attention = reader.flag("attention_bias", False)
    return attention, attention, reader.flag("mlp_bias", False)


def _qwen2_biases(_: ConfigReader) -> Biases:
    return True, False, False


def _qwen3_biases(reader: ConfigReader) -> Biases:
    attention = reader.flag("attention_bias", False)
    return attention, attention, False


def _no_biases(_: ConfigReader) -> Biases:
    return False, False, False


def _no_window(_reader: ConfigReader, _layers: int, _max_context: int) -> int | None:
    return None


def _mistral_window(reader: ConfigReader, _layers: int, max_context: int) -> int | None:
    window = reader.optional_integer("sliding_window", 4096, minimum=1)
    return _window_of_all_layers(reader, window, max_context)


def _qwen_window(reader: ConfigReader, layers: int, max_context: int) -> int | None:
    """Qwen slides only when ``use_sliding_window``, and then only in layers from ``max_window_layers`` on."""
    if not reader.flag("use_sliding_window", False):
        return None
    window = reader.optional_integer("sliding_window", 4096, minimum=1)
    first = reader.integer("max_window_layers", 28, minimum=0)
    if reader.values.get("layer_types") is None:
        if first >= layers:
            return None
        if first > 0 and window is not None and window < max_context:
            raise reader.bad(
                "max_window_layers", f"0 or at least {layers}, as layers of mixed attention are not supported"
            )
    return _window_of_all_layers(reader, window, max_context)


def _window_of_all_layers(reader: ConfigReader, window: int | None, max_context: int) -> int | None:
    """Return the window that every layer has, or None when none can ever be short of the context."""
    kinds = reader.values.get("layer_types")
    if kinds is not None:
        known = ("full_attention", "sliding_attention")
        if not isinstance(kinds, list) or not kinds or any(kind not in known for kind in kinds):
            raise reader.bad("layer_types", f"a list of {' and '.join(known)}")
        if len(set(kinds)) > 1:
            raise reader.bad("layer_types", "one kind for all layers, as mixed attention is not supported")
        window = window if kinds[0] == "sliding_attention" else None
    return window if window is not None and window < max_context else None


@dataclass(frozen=True, slots=True)
class Family:
    """What the architectures of one family have in common, and its defaults for absent keys."""

    name: str
    biases: Callable[[ConfigReader], Biases]
    window: Callable[[ConfigReader, int, int], int | None]
    default_kv_heads: int | None = None
    default_head_size: int | None = None
    has_qk_norm: bool = False
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family("llama", _llama_biases, _no_window, bos=(1,), eos=(2,)),
    "MistralForCausalLM": Family(
        "mistral", _no_biases, _mistral_window, default_kv_heads=8, bos=(1,), eos=(2,)
    ),
    "Qwen2ForCausalLM": Family("qwen2", _qwen2_biases, _qwen_window, default_kv_heads=32),
    "Qwen3ForCausalLM": Family(
        "qwen3", _qwen3_biases, _qwen_window, default_kv_heads=32, default_head_size=128, has_qk_norm=True
    ),
}
SUPPORTED_ARCHITECTURES = tuple(FAMILIES)
