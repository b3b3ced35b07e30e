"""Bodies of some megabytes that are slow to parse or large once parsed, for every server that reads JSON."""

from __future__ import annotations

from collections.abc import Callable


def filled(
    size: int, pattern: bytes, start: bytes = b'{"model":"mine","messages":[', end: bytes = b"0]}"
) -> bytes:
    """Return ``start``, then ``pattern`` again and again, then ``end``: ``size`` bytes at most."""
    return start + pattern * ((size - len(start) - len(end)) // len(pattern)) + end


def bodies(size: int) -> dict[str, Callable[[], bytes]]:
    """Return functions by their name, each of which makes a body of ``size`` bytes."""
    prompt = b'{"model":"mine","prompt":"', b'"}'
    token_ids = b'{"model":"mine","prompt":[', b"1]}"
    return {
        "objects": lambda: filled(size, b'{"":{}},'),
        "empty lists": lambda: filled(size, b"[],"),
        "numbers": lambda: filled(size, b"9999,"),
        "floats": lambda: filled(size, b"1.5e-300,"),
        "subnormal floats": lambda: filled(
            size, b"2.22507385850720113605740979670913197593481954635164564e-308,", *token_ids
        ),
        "long integers": lambda: filled(size, b"7" * 4300 + b",", *token_ids),
        "strings": lambda: filled(size, b'"",'),
        "messages": lambda: filled(size, b'{"role":"user"},'),
        "keys": lambda: filled(size, b'"k":0,', b'{"model":"mine",', b'"z":0}'),
        "models": lambda: filled(size, b'"model":"mine",', b"{", b'"model":"mine"}'),
        "one key": lambda: filled(size, b"k", b'{"model":"mine","', b'":0}'),
        "token ids": lambda: filled(size, b"1,", *token_ids),
        "lists of token ids": lambda: filled(size, b"[1],", b'{"model":"mine","prompt":[', b"[1]]}"),
        "depth of lists": lambda: (
            b'{"model":"mine","messages":' + b"[" * (size // 2 - 20) + b"]" * (size // 2 - 20) + b"}"
        ),
        "depth of objects": lambda: (
            b'{"model":"mine","a":' + b'{"":' * (size // 6) + b"0" + b"}" * (size // 6) + b"}"
        ),
        "unclosed lists": lambda: b"[" * size,
        "escapes": lambda: filled(size, b"\\u0041", *prompt),
        "surrogates": lambda: filled(size, b"\\ud83d\\ude00", *prompt),
        "lone surrogates": lambda: filled(size, b"\\ud83d", *prompt),
        "one integer": lambda: filled(size, b"9", b'{"model":"mine","seed":', b"}"),
        "white space": lambda: filled(size, b" ", b'{"model":"mine"', b"}"),
        "a name without an end": lambda: filled(size, b"x", b'{"model":"', b'"}'),
        "not UTF-8": lambda: filled(size, b"\xff", *prompt),
    }
