"""Limiter of requests and tokens a minute, and of requests at once, by a key's name and its file or Secret.

Keys of one name there, an old and a new one, share one limit. Pure but for the clock that it is given.
Nothing here runs for a streamed token: a request is admitted when its body was read, with an estimate of its
tokens, and settled at its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wisp_gateway.limits.bucket import Bucket, Reservation
from wisp_gateway.limits.errors import RateLimited, TokensLimited
from wisp_names.key_limits import KeyLimits

# Guess of the time until another request of the key ends.
CONCURRENT_WAIT_S = 1.0
# Bound of what one answer is charged, whatever its pod reports: the key may serve other models too.
MAX_ANSWER_MINUTES = 10


class KeyUse:
    """Use of the keys of one name in one file or Secret.

    Attributes:
        requests, tokens: buckets of a minute.
        running: requests that wait or run.
    """

    __slots__ = ("requests", "running", "tokens")

    def __init__(self) -> None:
        self.requests = Bucket()
        self.tokens = Bucket()
        self.running = 0

    def refill_s(self, now_s: float) -> float:
        """Return the time until both buckets are full."""
        return max(self.requests.refill_s(now_s), self.tokens.refill_s(now_s))


@dataclass(frozen=True, slots=True)
class Quota:
    """Remaining amount of one limit.

    Attributes:
        limit: amount a minute.
        remaining: amount that is there now.
        reset_s: time until all of it is there again.
    """

    limit: int
    remaining: int
    reset_s: float


class Admission:
    """A request that was let in; to be settled once, at its end."""

    def __init__(self, use: KeyUse, limits: KeyLimits, tokens: int, now_s: float) -> None:
        self._use = use
        self._per_minute = limits.tokens_per_minute
        self._reserved_tokens = tokens
        self._reservation: Reservation | None = None
        if self._per_minute is not None:
            self._reservation = use.tokens.reserve(tokens, self._per_minute, now_s)
        use.running += 1

    def settle(self, tokens: int | None) -> None:
        """End the request; ``tokens``: number that it used; None: unknown, those reserved are charged."""
        self._use.running -= 1
        if self._reservation is not None and self._per_minute is not None:
            used = self._reserved_tokens if tokens is None else tokens
            used = min(used, MAX_ANSWER_MINUTES * self._per_minute)
            self._use.tokens.settle(self._reservation, used, self._per_minute)


class Limiter:
    """Use of all keys that have limits, by ``Key.limited_as``.

    Args:
        clock: reader of a clock that never goes back, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._uses: dict[str, KeyUse] = {}

    def admit(self, name: str, limits: KeyLimits, tokens: int) -> Admission:
        """Let a request of about ``tokens`` in.

        Raises:
            RateLimited, TokensLimited: the key has used what it may; nothing is counted.
        """
        use, now_s = self._uses.setdefault(name, KeyUse()), self.clock()
        if limits.concurrent is not None and use.running >= limits.concurrent:
            raise RateLimited(
                f"{limits.concurrent} requests of this key already wait or run, as many as it may have at "
                "once (concurrent). Send the next one when one of them has ended.",
                limit="concurrent",
                wait_s=CONCURRENT_WAIT_S,
            )
        tokens = min(tokens, limits.tokens_per_minute or tokens)
        _check(use, limits, tokens, now_s)
        if limits.requests_per_minute is not None:
            use.requests.take(1, limits.requests_per_minute, now_s)
        return Admission(use, limits, tokens, now_s)

    def quotas(self, name: str, limits: KeyLimits) -> dict[str, Quota]:
        """Return the rest of each limit that the key has, by ``requests`` and ``tokens``."""
        use, now_s = self._uses.get(name) or KeyUse(), self.clock()
        buckets = {
            "requests": (use.requests, limits.requests_per_minute),
            "tokens": (use.tokens, limits.tokens_per_minute),
        }
        return {
            kind: Quota(limit, bucket.available(limit, now_s), bucket.refill_s(now_s))
            for kind, (bucket, limit) in buckets.items()
            if limit is not None
        }

    def debts_s(self) -> dict[str, tuple[float, float]]:
        """Return the times until the buckets of each name are full; forget names without any use."""
        now_s = self.clock()
        for name in [name for name, use in self._uses.items() if _is_idle(use, now_s)]:
            del self._uses[name]
        return {
            name: (use.requests.refill_s(now_s), use.tokens.refill_s(now_s))
            for name, use in self._uses.items()
        }

    def restore(self, debts_s: Mapping[str, tuple[float, float]]) -> None:
        """Take up the use of an earlier process."""
        now_s = self.clock()
        for name, (requests_s, tokens_s) in debts_s.items():
            use = self._uses.setdefault(name, KeyUse())
            use.requests.full_at_s = now_s + requests_s
            use.tokens.full_at_s = now_s + tokens_s


def _check(use: KeyUse, limits: KeyLimits, tokens: int, now_s: float) -> None:
    rpm, tpm = limits.requests_per_minute, limits.tokens_per_minute
    if rpm is not None and (wait_s := use.requests.wait_s(1, rpm, now_s)):
        raise RateLimited(
            f"This key may send {rpm} requests a minute (rpm). Try again in {wait_s:.3g} s, or ask whoever "
            "runs this gateway for more.",
            limit="rpm",
            wait_s=wait_s,
        )
    if tpm is not None and (wait_s := use.tokens.wait_s(tokens, tpm, now_s)):
        left = use.tokens.available(tpm, now_s)
        raise TokensLimited(
            f"This key may use {tpm} tokens a minute (tpm): {left} are left, and this request may need "
            f"{tokens}, its prompt and its longest answer. Try again in {wait_s:.3g} s, lower max_tokens, or "
            "ask whoever runs this gateway for more.",
            limit="tpm",
            wait_s=wait_s,
        )


def _is_idle(use: KeyUse, now_s: float) -> bool:
    return not use.running and not use.refill_s(now_s)
