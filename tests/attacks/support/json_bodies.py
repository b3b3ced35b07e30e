"""Bodies of some megabytes that are slow to parse or large once parsed, for every server that reads JSON."""

from __future__ import annotations


def filled(
    size: int, pattern: bytes, start: bytes = b'{"model":"mine","messages":[', end: bytes = b"0]}"
) -> bytes:
    """Return ``start``, then ``pattern`` again and again, then ``end``: ``size`` bytes at most."""
    return start + pattern * ((size - len(start) - len(end)) // len(pattern)) + end


def bodies(size: int) -> dict[str, bytes]:
    """Return bodies of ``size`` bytes by their name."""
    prompt = b'{"model":"mine","prompt":"', b'"}'
    token_ids = b'{"model":"mine","prompt":[', b"1]}"
    return {
        "objects": filled(size, b'{"":{}},'),
        "empty lists": filled(size, b"[],"),
        "numbers": filled(size, b"9999,"),
        "floats": filled(size, b"1.5e-300,"),
        "subnormal floats": filled(
            size, b"2.22507385850720113605740979670913197593481954635164564e-308,", *token_ids
        ),
        "long integers": filled(size, b"7" * 4300 + b",", *token_ids),
        "strings": filled(size, b'"",'),
        "messages": filled(size, b'{"role":"user"},'),
        "keys": filled(size, b'"k":0,', b'{"model":"mine",', b'"z":0}'),
        "models": filled(size, b'"model":"mine",', b"{", b'"model":"mine"}'),
        "one key": filled(size, b"k", b'{"model":"mine","', b'":0}'),
        "token ids": filled(size, b"1,", *token_ids),
        "lists of token ids": filled(size, b"[1],", b'{"model":"mine","prompt":[', b"[1]]}"),
        "depth of lists": b'{"model":"mine","messages":'
        + b"[" * (size // 2 - 20)
        + b"]" * (size // 2 - 20)
        + b"}",
        "depth of objects": b'{"model":"mine","a":'
        + b'{"":' * (size // 6)
        + b"0"
        + b"}" * (size // 6)
        + b"}",
        "unclosed lists": b"[" * size,
        "escapes": filled(size, b"\\u0041", *prompt),
        "surrogates": filled(size, b"\\ud83d\\ude00", *prompt),
        "lone surrogates": filled(size, b"\\ud83d", *prompt),
        "one integer": filled(size, b"9", b'{"model":"mine","seed":', b"}"),
        "white space": filled(size, b" ", b'{"model":"mine"', b"}"),
        "a name without an end": filled(size, b"x", b'{"model":"', b'"}'),
        "not UTF-8": filled(size, b"\xff", *prompt),
    }
