"""A model's tokenizer and the source of its chat template, read from its directory or GGUF file.

Wraps the ``tokenizers`` package. Encoding long texts takes time, so the server calls it from a thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from wisp_runtime.convert.tokenizer_files import SETTINGS, TokenizerFiles
from wisp_runtime.errors import TokenizerUnreadable
from wisp_runtime.server.text.template_messages import MAX_SOURCE_CHARS, ChatTemplate

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class ModelTokenizer:
    """Text to tokens and back.

    Attributes:
        special_ids: tokens that are never emitted as text.
        longest_token_chars: maximum of characters that one token stands for.
        largest_id: largest token id; beyond the model's own where tokens were added to the tokenizer alone.
        end_id: the token that ends a text by ``tokenizer_config.json``; None if it names none.
        renumbered: added tokens whose id in ``tokenizer.json`` the package did not keep: text, id in the
            file, id in use.
    """

    tokenizer: Tokenizer
    special_ids: frozenset[int]
    is_byte_level: bool
    longest_token_chars: int
    largest_id: int
    end_id: int | None = None
    renumbered: tuple[tuple[str, int, int], ...] = ()

    def encode(self, text: str, *, adds_special: bool) -> list[int]:
        """Return the tokens of ``text``; ``adds_special`` puts the model's own around them."""
        # Of the package's encoders, only the batch ones release the interpreter's lock.
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=adds_special)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``; bytes that are no UTF-8 become U+FFFD, unknown ids nothing."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))

    def names_of(self, tokens: Sequence[int]) -> list[str]:
        """Return the vocabulary's own name of each token (``Ġworld``)."""
        return [self.tokenizer.id_to_token(token) or "" for token in tokens]

    def special_tokens_among(self, texts: Sequence[str]) -> list[int]:
        """Return the ids of those ``texts`` that are special tokens: no decoded text ever shows them."""
        ids = (self.tokenizer.token_to_id(text) for text in texts)
        return [token for token in ids if token in self.special_ids]

    def grammar_tokens(self, texts: Sequence[str]) -> dict[str, int]:
        """Return the ids of those ``texts`` that grammars see as one token, and never as characters.

        Special tokens are, and other added ones in angle brackets (Qwen's ``<tool_call>``).
        """
        added = {
            content.content: token for token, content in self.tokenizer.get_added_tokens_decoder().items()
        }
        return {
            text: added[text]
            for text in texts
            if text in added and (added[text] in self.special_ids or re.fullmatch("<.*>", text))
        }

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes one token stands for, even if they are only a part of a character."""
        text = self.tokenizer.id_to_token(token)
        if text is None:
            return b""
        if token not in self.special_ids:
            if self.is_byte_level and all(letter in _BYTE_OF for letter in text):
                return bytes(_BYTE_OF[letter] for letter in text)
            if match := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", text):
                return bytes([int(match[1], 16)])
        return text.replace("▁", " ").encode() if not self.is_byte_level else text.encode()


def load_tokenizer(directory: Path) -> ModelTokenizer:
    """Read a model's ``tokenizer.json``, or the tokenizer of a GGUF file.

    Raises:
        TokenizerUnreadable: a file is missing or broken; the message names it.
        ModelUnsupported: the tokenizer of a GGUF file is none that is read.
    """
    files = TokenizerFiles(directory)
    path, text = files.tokenizer()
    try:
        tokenizer = Tokenizer.from_buffer(text)
    except Exception as error:  # the package raises plain Exception
        raise TokenizerUnreadable(f"{path} cannot be read: {error}. Download or convert it again.") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    content = json.loads(text)
    vocabulary = tokenizer.get_vocab()
    added = tokenizer.get_added_tokens_decoder()
    end = _read_special_tokens(files).get("eos_token")
    return ModelTokenizer(
        tokenizer=tokenizer,
        special_ids=frozenset(token for token, content in added.items() if content.special),
        is_byte_level='"ByteLevel"' in json.dumps(content.get("decoder")),
        longest_token_chars=max(map(len, vocabulary), default=1),
        largest_id=max(vocabulary.values(), default=0),
        end_id=vocabulary.get(end) if end is not None else None,
        renumbered=_renumbered(content.get("added_tokens") or [], vocabulary),
    )


def _renumbered(added: list[dict[str, Any]], vocabulary: dict[str, int]) -> tuple[tuple[str, int, int], ...]:
    """Return the added tokens whose ids the package replaced: it numbers those beyond the vocabulary anew."""
    pairs = ((token["content"], token["id"]) for token in added)
    known = ((text, token, vocabulary.get(text, token)) for text, token in pairs)
    return tuple(entry for entry in known if entry[1] != entry[2])


def read_template(directory: Path) -> ChatTemplate | None:
    """Read a model's chat template; None for a base model. It is compiled elsewhere.

    Raises:
        TokenizerUnreadable: a file is broken, or the template absurdly long; the message names it.
    """
    files = TokenizerFiles(directory)
    source = files.text("chat_template.jinja")
    if source is None:
        source = _named_template(files.json(SETTINGS).get("chat_template"))
    if source is None:
        source = _named_template(files.json("chat_template.json").get("chat_template"))
    if source is None:
        return None
    if len(source) > MAX_SOURCE_CHARS:
        raise TokenizerUnreadable(
            f"{directory}: the chat template has {len(source)} characters; at most {MAX_SOURCE_CHARS} are "
            "read. Download or convert the model again."
        )
    return ChatTemplate(source, _read_special_tokens(files))


def _named_template(value: Any) -> str | None:
    """Return the default among ``[{"name": …, "template": …}]``, or the one template there is."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default") or next(iter(named.values()), None)
    return value if isinstance(value, str) else None


def _read_special_tokens(files: TokenizerFiles) -> dict[str, str]:
    """Return texts of special tokens by role; ``tokenizer_config.json`` outranks the map."""
    first, second = (_special_tokens(files.json(name)) for name in ("special_tokens_map.json", SETTINGS))
    return first | second


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in SPECIAL_NAMES:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return tokens


def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each letter of a byte-level vocabulary stands for.

    Source: Radford et al. 2019 (GPT-2): printable Latin-1 bytes stand for themselves, the others for
    the letters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
