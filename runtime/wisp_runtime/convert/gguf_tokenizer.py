"""``tokenizer.json`` and ``tokenizer_config.json`` from GGUF metadata: byte-level BPE, or SentencePiece's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard, TypeVar
from unicodedata import normalize

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from wisp_plan.gguf.metadata import Metadata
from wisp_plan.json_object import shorten
from wisp_runtime.convert.sentencepiece import sentencepiece
from wisp_runtime.errors import ModelUnsupported, TokenizerUnreadable

T = TypeVar("T")

_CONTROL, _USER_DEFINED = 3, 4
_ROUND_TRIPS = (
    "Hello, world! It's 2024-05-17; 12345 apples cost $6.78.",
    "  two  spaces\n\n\ttab, trailing space ",
    "naïve café — “quotes” … 東京 Москва العربية 🙂👩‍👩‍👧‍👦 e\u0301",
    "def f(x):\n    return x**2  # comment\n",
)


_REMEDY = "Put the model's tokenizer.json, from the original repository, beside the file."
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Splitter:
    """Rule by which a tokenizer splits text before it merges bytes.

    Attributes:
        pre_tokenizer: splits, and maps bytes to letters.
        ignores_merges: whether a split that is a token is taken without merging.
        adds_bos: whether a text begins with the first token where the file does not say.
        normalizes: whether Unicode is composed first.
    """

    pre_tokenizer: pre_tokenizers.PreTokenizer
    ignores_merges: bool = False
    adds_bos: bool = False
    normalizes: bool = False


def _by_regex(digits: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(_GPT4.replace("DIGITS", digits)), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_LLAMA3 = Splitter(_by_regex("{1,3}"), ignores_merges=True, adds_bos=True)
SPLITTERS = {
    "gpt-2": Splitter(_BYTE_LEVEL),
    "smollm": Splitter(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _BYTE_LEVEL])),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3"), _LLAMA3),
    "qwen2": Splitter(_by_regex(""), normalizes=True),
}
"""Rules by ggml's names (``tokenizer.ggml.pre``), each as in the ``tokenizer.json`` that it stands for."""


def tokenizer(source: Metadata) -> Tokenizer:
    """Build the tokenizer of the file, and check that text survives a round trip.

    Raises:
        ModelUnsupported: another kind of tokenizer, or an unknown pre-tokenizer.
        TokenizerUnreadable: its lists contradict each other, or text does not survive a round trip.
    """
    kind = source.require("tokenizer.ggml.model", str)
    if kind not in _BUILDERS:
        raise ModelUnsupported(
            f"{source.file}: its tokenizer is of the kind {shorten(repr(kind))}; only byte-level BPE "
            f"('gpt2') and SentencePiece's ('llama') are read. {_REMEDY}"
        )
    tokens, kinds = (source.listed(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if not _is_texts(tokens) or len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
        raise _damaged(source)
    built = _BUILDERS[kind](source, tokens, kinds)
    built.add_tokens(
        [
            AddedToken(token, special=kind == _CONTROL, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (_CONTROL, _USER_DEFINED)
        ]
    )
    _check_round_trips(source, built)
    if source.get("tokenizer.ggml.add_bos_token", bool, _adds_bos(source)):
        built.post_processor = _bos_first(source, tokens)
    return built


def _byte_level(source: Metadata, tokens: list[str], _kinds: list[object]) -> Tokenizer:
    merges, splitter = source.listed("tokenizer.ggml.merges"), _splitter(source)
    if not _is_texts(merges):
        raise _damaged(source)
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [_pair(source, merge) for merge in merges]
    try:
        built = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=splitter.ignores_merges))
    except Exception as error:  # the library's only class
        raise _contradiction(source, error) from error
    built.pre_tokenizer = splitter.pre_tokenizer
    if splitter.normalizes:
        built.normalizer = normalizers.NFC()
    built.decoder = decoders.ByteLevel()
    return built


def _sentencepiece(source: Metadata, tokens: list[str], kinds: list[object]) -> Tokenizer:
    scores = source.listed("tokenizer.ggml.scores")
    if len(scores) != len(tokens) or not (_are(scores, float) and _are(kinds, int)):
        raise _damaged(source)
    adds_space = bool(source.get("tokenizer.ggml.add_space_prefix", bool, True))
    try:
        return sentencepiece(tokens, scores, kinds, adds_space=adds_space)
    except Exception as error:  # the library's only class
        raise _contradiction(source, error) from error


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece}
"""Builder of each kind of tokenizer, by ggml's names."""


def tokenizer_config(source: Metadata, max_context: int) -> dict[str, object]:
    """Return ``tokenizer_config.json``, with the chat template if the file has one."""
    tokens = source.listed("tokenizer.ggml.tokens")
    roles = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    ids = {ours: source.get(f"tokenizer.ggml.{theirs}_token_id", int) for theirs, ours in roles.items()}
    template = source.get("tokenizer.chat_template", str)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_context,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": source.get("tokenizer.ggml.add_bos_token", bool, _adds_bos(source)),
        "add_eos_token": source.get("tokenizer.ggml.add_eos_token", bool, False),
        **{
            f"{role}_token": _token(source, tokens, index) for role, index in ids.items() if index is not None
        },
        **({"chat_template": template} if template else {}),
    }


def _token(source: Metadata, tokens: Sequence[object], index: int) -> str:
    if not 0 <= index < len(tokens):
        raise TokenizerUnreadable(
            f"{source.file}: the special token {index} is none of its {len(tokens)}; download it again."
        )
    return str(tokens[index])


def _adds_bos(source: Metadata) -> bool:
    """Return whether a text begins with the first token, where the file does not say."""
    return source.get("tokenizer.ggml.model", str) == "llama" or _splitter(source).adds_bos


def _damaged(source: Metadata) -> TokenizerUnreadable:
    return TokenizerUnreadable(f"{source.file}: its token list is damaged; download it again.")


def _contradiction(source: Metadata, error: Exception) -> TokenizerUnreadable:
    return TokenizerUnreadable(
        f"{source.file}: its tokens and merges contradict each other ({shorten(str(error))}); download it "
        "again."
    )


def _splitter(source: Metadata) -> Splitter:
    rule = source.get("tokenizer.ggml.pre", str) or "gpt-2"
    if rule not in SPLITTERS:
        raise ModelUnsupported(
            f"{source.file}: its tokenizer splits text by {shorten(repr(rule))}; only "
            f"{', '.join(SPLITTERS)} are read. {_REMEDY}"
        )
    return SPLITTERS[rule]


def _is_texts(values: list[object]) -> TypeGuard[list[str]]:
    return all(isinstance(text, str) for text in values)


def _are(values: list[object], kind: type[T]) -> TypeGuard[list[T]]:
    return all(isinstance(value, kind) for value in values)


def _pair(source: Metadata, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise TokenizerUnreadable(
            f"{source.file}: the merge {shorten(repr(merge))} is no pair; download it again."
        )
    return left, right


def _bos_first(source: Metadata, tokens: Sequence[object]) -> processors.TemplateProcessing:
    index = source.require("tokenizer.ggml.bos_token_id", int)
    token = _token(source, tokens, index)
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A $B", special_tokens=[(token, index)]
    )


def _check_round_trips(source: Metadata, built: Tokenizer) -> None:
    for text in _ROUND_TRIPS:
        back = built.decode(built.encode(text, add_special_tokens=False).ids, skip_special_tokens=False)
        if normalize("NFC", back) != normalize("NFC", text):
            raise TokenizerUnreadable(
                f"{source.file}: its tokenizer turns {text!r} into {shorten(repr(back))}; its token list is "
                "incomplete."
            )
