"""``tokenizer.json`` and ``tokenizer_config.json`` from GGUF metadata: byte-level BPE only."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from wisp_runtime.convert.gguf_file import GGUFFile
from wisp_runtime.errors import ModelUnsupported, TokenizerUnreadable

_CONTROL, _USER_DEFINED = 3, 4
_ROUND_TRIPS = (
    "Hello, world! It's 2024-05-17; 12345 apples cost $6.78.",
    "  two  spaces\n\n\ttab, trailing space ",
    "naïve café — “quotes” … 東京 Москва العربية 🙂👩‍👩‍👧‍👦 e\u0301",
    "def f(x):\n    return x**2  # comment\n",
)


def tokenizer(source: GGUFFile) -> Tokenizer:
    """Build the tokenizer of the file, and check that text survives a round trip.

    Raises:
        ModelUnsupported: not byte-level BPE, or an unknown pre-tokenizer.
        TokenizerUnreadable: its lists contradict each other, or text does not survive a round trip.
    """
    _require_byte_level(source)
    tokens, kinds, merges = (
        source.require(f"tokenizer.ggml.{name}", list) for name in ("tokens", "token_type", "merges")
    )
    is_text = all(isinstance(text, str) for text in (*tokens, *merges))
    if not is_text or len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise TokenizerUnreadable(f"{source.path}: its token list is damaged; download it again.")
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [_pair(source, merge) for merge in merges]
    try:
        built = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=False))
    except Exception as error:  # the library's only class
        raise TokenizerUnreadable(
            f"{source.path}: its tokens and merges contradict each other ({error}); download it again."
        ) from error
    built.pre_tokenizer = _splitter(source)
    built.decoder = decoders.ByteLevel()
    built.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    _check_round_trips(source, built)
    if source.get("tokenizer.ggml.add_bos_token", bool, False):
        built.post_processor = _bos_first(source, tokens)
    return built


def tokenizer_config(source: GGUFFile, max_context: int) -> dict[str, object]:
    """Return ``tokenizer_config.json``, with the chat template if the file has one."""
    tokens = source.require("tokenizer.ggml.tokens", list)
    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    ids = {ours: source.get(f"tokenizer.ggml.{theirs}_token_id", int) for theirs, ours in roles.items()}
    template = source.get("tokenizer.chat_template", str)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_context,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": source.get("tokenizer.ggml.add_bos_token", bool, False),
        **{
            f"{role}_token": _token(source, tokens, index) for role, index in ids.items() if index is not None
        },
        **({"chat_template": template} if template else {}),
    }


def _token(source: GGUFFile, tokens: list[str], index: int) -> str:
    if not 0 <= index < len(tokens):
        raise TokenizerUnreadable(
            f"{source.path}: the special token {index} is none of its {len(tokens)}; download it again."
        )
    return tokens[index]


def _require_byte_level(source: GGUFFile) -> None:
    kind = source.require("tokenizer.ggml.model", str)
    if kind != "gpt2":
        raise ModelUnsupported(
            f"{source.path}: its tokenizer is of the kind {kind!r}; only byte-level BPE ('gpt2') can be "
            "converted. Use the repository with the original tokenizer.json."
        )


def _splitter(source: GGUFFile) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    known = {
        "gpt-2": byte_level,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level]),
    }
    rule = source.get("tokenizer.ggml.pre", str) or "gpt-2"
    if rule not in known:
        raise ModelUnsupported(
            f"{source.path}: its tokenizer splits text by {rule!r}; only {', '.join(known)} can be "
            "converted. Use the repository with the original tokenizer.json."
        )
    return known[rule]


def _pair(source: GGUFFile, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise TokenizerUnreadable(f"{source.path}: the merge {merge!r} is no pair; download it again.")
    return left, right


def _bos_first(source: GGUFFile, tokens: list[str]) -> processors.TemplateProcessing:
    index = source.require("tokenizer.ggml.bos_token_id", int)
    token = _token(source, tokens, index)
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, index)]
    )


def _check_round_trips(source: GGUFFile, built: Tokenizer) -> None:
    for text in _ROUND_TRIPS:
        back = built.decode(built.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        if back != text:
            raise TokenizerUnreadable(
                f"{source.path}: its tokenizer turns {text!r} into {back!r}; its token list is incomplete."
            )
