"""Suspension of the persistent decode kernel while kernels of other processes may run beside it.

All thread blocks of the kernel wait for each other, so all must run at once. Processes that share a GPU in
time slices have all of it in turn, and nothing is suspended. Under NVIDIA's MPS their kernels run side by
side: another's may hold SMs for as long as it likes, and a trap of ours would end every client of the MPS
server. So before a step it is checked, at most twice a second, whether another client is there.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from wisp_runtime.ops.protocol.persistent import PersistentKernel

CHECK_EVERY_S = 0.5
RESUME_AFTER_S = 10.0
WHY_SUSPENDED = (
    "another process uses the GPU through MPS: its kernels may hold SMs that the thread blocks of a step "
    "would wait for. Give the model a GPU of its own, or share this one in time slices"
)

log = logging.getLogger(__name__)


class CoRunningCheck:
    """Keeps a persistent kernel from running beside other processes' kernels.

    Args:
        kernel: the kernel; suspended, its limit of context tokens is 0, so that every step is general.
        co_running: returns the number of other processes whose kernels may run at once with ours.
        clock: monotonic seconds.

    Attributes:
        on_change: called with True when the kernel is suspended, with False when it is used again.
    """

    def __init__(
        self,
        kernel: PersistentKernel,
        co_running: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.on_change: Callable[[bool], None] = lambda _: None
        self._kernel, self._co_running, self._clock = kernel, co_running, clock
        self._max_context_tokens = kernel.max_context_tokens
        self._next_check_s = self._resume_s = 0.0

    @property
    def is_suspended(self) -> bool:
        """Whether every step takes the general path now."""
        return self._resume_s > 0.0

    def __call__(self) -> None:
        """Check if it is time to; before a step is staged."""
        now_s = self._clock()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_EVERY_S
        was_suspended = self.is_suspended
        if self._co_running():
            self._resume_s = now_s + RESUME_AFTER_S
        elif now_s >= self._resume_s:
            self._resume_s = 0.0
        if self.is_suspended != was_suspended:
            self._kernel.max_context_tokens = 0 if self.is_suspended else self._max_context_tokens
            log.warning(
                "decode steps take the %s",
                f"general path: {WHY_SUSPENDED}" if self.is_suspended else "persistent kernel again",
            )
            self.on_change(self.is_suspended)
