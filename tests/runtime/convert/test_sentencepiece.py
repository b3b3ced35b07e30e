"""SentencePiece's tokenizer out of tokens and scores."""

import pytest

from wisp_runtime.convert.sentencepiece import merges, sentencepiece

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = ["▁", "a", "b", "c"]
MERGED = ["ab", "bc", "▁ab", "▁a", "abc"]  # the first merges first
TOKENS = ["<unk>", "<s>", *BYTES, *MERGED, *LETTERS]
KINDS = [UNKNOWN, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(MERGED) + len(LETTERS))]
SCORES = [0.0] * 258 + [float(-rank) for rank in range(len(MERGED))] + [-100.0] * len(LETTERS)


def built(adds_space=False):
    return sentencepiece(TOKENS, SCORES, KINDS, adds_space=adds_space)


def test_tokens_merge_by_score_and_then_by_id():
    assert list(merges(TOKENS, SCORES, KINDS)) == [
        ("a", "b"),
        ("b", "c"),
        ("▁a", "b"),  # of the pairs of one token the lower ids first: ▁a is listed before ▁
        ("▁", "ab"),
        ("▁", "a"),
        ("ab", "c"),
        ("a", "bc"),
    ]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("abc", ["abc"]),  # ab is merged before bc
        (" ab a", ["▁ab", "▁a"]),
        ("bcb", ["bc", "b"]),
        ("aé", ["a", "<0xC3>", "<0xA9>"]),  # no token has it: its bytes
        ("", []),
    ],
)
def test_text_becomes_tokens_and_text_again(text, tokens):
    tokenizer = built()
    encoded = tokenizer.encode(text)
    assert encoded.tokens == tokens
    assert tokenizer.decode(encoded.ids) == text


def test_a_space_is_added_before_a_text_and_taken_away_after():
    tokenizer = built(adds_space=True)
    assert tokenizer.encode("ab a").tokens == ["▁ab", "▁a"]
    for text in ("ab a", " ab", "cab"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
