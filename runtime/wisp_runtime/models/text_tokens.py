"""Tokens of a text by a model's own tokenizer, for passes outside of the server."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from wisp_runtime.errors import ConfigError, TokenizerUnreadable


def read_text(path: Path) -> str:
    """Return a text file's content.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Name a text file.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 (byte {error.start}: {error.object[error.start]:#04x}). Name one that is."
        ) from error


def read_tokens(folder: Path, text: str, vocab: int) -> list[int]:
    """Return the tokens of ``text``, without special ones.

    Args:
        folder: folder of the model.
        text: the text.
        vocab: tokens that the model knows.

    Raises:
        TokenizerUnreadable: there is no tokenizer.json that can be read, or it is another model's.
        ConfigError: the text has fewer than two tokens.
    """
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library's only class
        raise TokenizerUnreadable(
            f"{folder / 'tokenizer.json'} cannot be read: {error}. Download the model again."
        ) from error
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    if (largest := max(tokens, default=0)) >= vocab:
        raise TokenizerUnreadable(
            f"{folder / 'tokenizer.json'} makes the token {largest}, but the model has {vocab}: it is "
            "another model's. Download the model again."
        )
    if len(tokens) < 2:
        raise ConfigError(f"the text has {len(tokens)} tokens, none to predict; name a longer one.")
    return tokens
