"""Counter-based random numbers: the published answers, and the mapping from token to word."""

from __future__ import annotations

import numpy as np
import pytest

from wisp_runtime.ops.reference import philox4x32, token_words


@pytest.mark.parametrize(
    ("counter", "key", "expect"),
    [  # kat_vectors of the authors' Random123 library, philox4x32 with 10 rounds
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, expect):
    assert philox4x32(np.array([counter], np.uint32), key)[0].tolist() == list(expect)


def test_a_token_has_the_word_of_its_own_counter_whoever_is_asked_for_beside_it():
    tokens = np.arange(1000)
    words = token_words(tokens, seed=7 << 40 | 3, step=1 << 33 | 5)
    for token in (0, 1, 2, 3, 4, 517, 999):
        block = philox4x32(np.array([[token // 4, 0, 5, 2]], np.uint32), (3, 7 << 8))
        assert words[token] == block[0, token % 4]
    some = np.array([5, 6, 517, 999])
    np.testing.assert_array_equal(token_words(some, seed=7 << 40 | 3, step=1 << 33 | 5), words[some])


@pytest.mark.parametrize("change", [{"seed": 2}, {"seed": 1 << 32 | 1}, {"step": 8}, {"step": 1 << 32 | 9}])
def test_another_seed_or_step_gives_other_words(change):
    usual = {"seed": 1, "step": 9}
    assert not (token_words(np.arange(64), **usual) == token_words(np.arange(64), **(usual | change))).any()
