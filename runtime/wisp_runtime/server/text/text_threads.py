"""Threads that turn texts into tokens: long texts have a few of their own, so that short ones never wait.

A million characters take a second of a processor. The event loop's own pool has as many threads as a machine
has processors and four more; as many long prompts would stop every chat until they are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

LONG_TEXT_CHARS = 1 << 16
LONG_TEXTS_AT_A_TIME = 2

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class TextThreads:
    """Runs work on texts in threads, by the texts' length."""

    def __init__(self) -> None:
        self._long = ThreadPoolExecutor(LONG_TEXTS_AT_A_TIME, thread_name_prefix="long-text")

    async def run(
        self,
        chars: int,
        work: Callable[Arguments, Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Return the result of ``work``, which reads texts of ``chars`` characters together."""
        if chars <= LONG_TEXT_CHARS:
            return await asyncio.to_thread(work, *args, **kwargs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._long, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """Start no further work."""
        self._long.shutdown(wait=False, cancel_futures=True)
