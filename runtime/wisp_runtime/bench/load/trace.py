"""Traces of requests: arrival times and lengths, equal for every server that is given the same seed.

Pure: no clock, no I/O. Arrivals are a Poisson process, a burst, or one request after the other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

_WIDEST = 8  # lengths stay within a factor of this around their median


@dataclass(frozen=True, slots=True)
class Arrival:
    """One planned request.

    Attributes:
        at_s: planned send time, seconds after the stage's start.
        prompt_tokens, output_tokens: lengths of prompt and completion.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths of prompts and completions.

    Attributes:
        prompt_tokens, output_tokens: medians.
        spread: standard deviation of the logarithm; 0 makes all lengths equal to the median.
    """

    prompt_tokens: int
    output_tokens: int
    spread: float

    def sample(self, rng: random.Random) -> tuple[int, int]:
        """Return the tokens of a prompt and of its completion."""
        return self._length(rng, self.prompt_tokens), self._length(rng, self.output_tokens)

    def _length(self, rng: random.Random, median: int) -> int:
        tokens = round(median * math.exp(rng.gauss(0.0, self.spread)))
        return max(1, median // _WIDEST, min(tokens, median * _WIDEST))


@dataclass(frozen=True, slots=True)
class Stage:
    """Arrivals that are measured together.

    Attributes:
        name: name in the rows, such as ``15/s`` or ``400 at once``.
        arrivals: planned requests by time.
        is_sequential: whether each request waits for the end of the one before; times are then ignored.
    """

    name: str
    arrivals: tuple[Arrival, ...]
    is_sequential: bool = False


def poisson_stage(rate_per_s: float, seconds: float, lengths: Lengths, seed: int) -> Stage:
    """Return a Poisson process of ``rate_per_s`` requests a second; at least one request."""
    rng = random.Random(f"{seed} {rate_per_s}")
    arrivals, at_s = list[Arrival](), 0.0
    while at_s < seconds or not arrivals:
        arrivals.append(Arrival(at_s, *lengths.sample(rng)))
        at_s += rng.expovariate(rate_per_s)
    return Stage(f"{rate_per_s:g}/s", tuple(arrivals))


def burst_stage(count: int, lengths: Lengths, seed: int) -> Stage:
    """Return ``count`` requests that arrive at once."""
    rng = random.Random(f"{seed} burst {count}")
    return Stage(f"{count} at once", tuple(Arrival(0.0, *lengths.sample(rng)) for _ in range(count)))


def sequential_stage(prompt_tokens: int, output_tokens: int, repeats: int) -> Stage:
    """Return ``repeats`` equal requests, one after the other: an idle server's first token."""
    arrivals = (Arrival(0.0, prompt_tokens, output_tokens),) * repeats
    return Stage(f"alone, {prompt_tokens} tokens", arrivals, is_sequential=True)


def prompt_ids(arrivals: Sequence[Arrival], vocab: int, seed: int) -> list[list[int]]:
    """Return random token ids below ``vocab`` for each prompt, so that none shares a prefix with another."""
    rng = random.Random(f"{seed} prompts {len(arrivals)}")
    return [rng.choices(range(vocab), k=arrival.prompt_tokens) for arrival in arrivals]
