"""Loops: found at their first token that suffices, and never where there is none."""

import json
import os
import random
import time
from pathlib import Path

import pytest

from wisp_runtime.server.answers.repetition import THINKING_LOOP, RepetitionFinder, RepetitionRule


def ends_at(tokens, rule):
    """Return the number of tokens after which a repetition was found, or None."""
    finder = RepetitionFinder(rule)
    return next((count for count, token in enumerate(tokens, 1) if finder.push(token)), None)


@pytest.mark.parametrize(
    ("tokens", "rule", "count"),
    [
        ([7] * 9, RepetitionRule(1, 1, 9), 9),
        ([7] * 9, RepetitionRule(1, 1, 10), None),
        ([1, 2, 3] * 3, RepetitionRule(1, 5, 3), 9),
        ([9, 8, 1, 2, 3, 1, 2, 3, 1, 2, 3], RepetitionRule(1, 5, 3), 11),
        ([1, 2, 3, 1, 2, 3, 1, 2], RepetitionRule(1, 5, 3), None),
        ([1, 2, 3] * 4, RepetitionRule(1, 2, 3), None),  # the pattern is longer than allowed
        ([5] * 12, RepetitionRule(3, 5, 3), 9),  # a pattern of three equal tokens is one
        ([1, 1, 1, 2] * 3, RepetitionRule(1, 8, 3), 3),  # the shortest comes first
        ([1, 1, 1, 2] * 3, RepetitionRule(4, 8, 3), 12),
        ([1, 2] * 100, RepetitionRule(1, 4, 3, min_tokens=50), 50),
        ([0x01020304, 0x04010203] * 6, RepetitionRule(1, 1, 3), None),  # bytes repeat, tokens do not
        (list(range(100)) * 20, THINKING_LOOP, None),  # longer than any pattern
        (list(range(64)) * 20, THINKING_LOOP, 8 * 64),
        ([3] * 255, THINKING_LOOP, None),
        ([3] * 300, THINKING_LOOP, 256),
        ([*range(1000), *[1, 2, 3, 4, 5] * 100], THINKING_LOOP, 1256),
        (([7] * 40 + [8]) * 20, THINKING_LOOP, 8 * 41),  # repetition within the pattern
    ],
)
def test_a_repetition_is_found_at_the_first_token_that_suffices(tokens, rule, count):
    assert ends_at(tokens, rule) == count


def test_every_repetition_is_found_that_a_plain_search_finds():
    random_of = random.Random(17)
    for _ in range(1500):
        size = random_of.randrange(1, 5)
        rule = RepetitionRule(
            size, size + random_of.randrange(4), random_of.randrange(2, 5), random_of.randrange(9)
        )
        tokens = [random_of.choice([1, 2, 256, 257]) for _ in range(random_of.randrange(40))]
        tokens += random_of.choices([1, 2, 256], k=random_of.randrange(1, 7)) * random_of.randrange(6)
        assert ends_at(tokens, rule) == plain(tokens, rule), (tokens, rule)


def plain(tokens, rule):
    for count in range(1, len(tokens) + 1):
        for size in range(rule.min_pattern_tokens, rule.max_pattern_tokens + 1):
            needed = rule.needed_tokens(size)
            last = tokens[count - needed : count] if needed <= count else []
            if last and all(last[index] == last[index - size] for index in range(size, needed)):
                return count
    return None


def table(rows):
    """Rows of a Markdown table as tokens: all alike but for one number."""
    return [token for row in range(rows) for token in [10, 1000 + row, 10, 11, 12, 10, 13, 10, 99]]


@pytest.mark.parametrize(
    "tokens",
    [
        table(500),
        [
            token for line in range(400) for token in (20, 21, 22, 2000 + line // 3, 23)
        ],  # lines that come three times
        [token for _ in range(30) for token in range(70)],  # a stanza repeated, longer than a pattern
        [5] * 200,  # a line of dashes
        [token for row in range(50) for token in [0] * 30 + [9, row]],  # a matrix of zeros, its rows numbered
    ],
)
def test_legitimate_repetition_is_not_a_loop(tokens):
    assert ends_at(tokens, THINKING_LOOP) is None


def cost_us(tokens):
    """Return the CPU time of a token, which is no loop."""
    finder, began_s = RepetitionFinder(THINKING_LOOP), time.process_time()
    assert sum(finder.push(token) for token in tokens) == 0
    return (time.process_time() - began_s) / len(tokens) * 1e6


def test_a_token_costs_little():
    random_of = random.Random(17)
    kinds = {
        "random tokens": [random_of.randrange(1 << 17) for _ in range(20_000)],
        "a table": table(2000),
        "runs of 63, as bad as can be": [token for _ in range(300) for token in [7] * 63 + [8, 9]],
    }
    costs = {kind: cost_us(tokens) for kind, tokens in kinds.items()}
    if path := os.environ.get("WISP_TEST_RECORD"):
        with Path(path).open("a") as record:
            for kind, cost in costs.items():
                record.write(
                    json.dumps({"what": f"search for loops, {kind}", "us a token": round(cost, 2)}) + "\n"
                )
    assert costs["random tokens"] < 20, "a microsecond on 2 slow cores"
