"""Default maximum of tokens in a step.

A prompt is computed in steps of at most that many tokens. Wide steps use a GPU better and need more
workspace, so ``auto`` is a list: the widest step that costs little comes first, and
:mod:`wisp_plan.fit.resolve` tries narrower ones before a narrower format, a shorter context or a refusal.
"""

from __future__ import annotations

from wisp_plan.fit.request import FitRequest
from wisp_plan.memory.ledger import workspace_bytes
from wisp_plan.spec.model import ModelSpec

GPU_STEPS = (8192, 4096, 2048, 1024, 512)
CPU_STEP = 512

WORKSPACE_SHARE = 16
"""Workspace of a GPU's step: at most this fraction of the available memory, one sixteenth."""


def step_sizes(spec: ModelSpec, request: FitRequest, available_bytes: int) -> tuple[int, ...]:
    """Return the tokens that a step may compute, in the order to try them: the most first.

    Each step holds at least a token of every sequence, and a chunk of a prompt where this is divided at
    multiples of one; else no more than ``max_concurrent`` sequences of ``max_context`` tokens can fill. What
    the user set stands alone.
    """
    if request.max_step_tokens is not None:
        return (request.max_step_tokens,)
    if request.device == "cpu":
        return (max(CPU_STEP, request.sequences),)
    least = max(request.sequences, request.prompt_stride(spec))
    context = request.max_context or spec.max_context
    most = 1 << (context * request.sequences - 1).bit_length()
    sizes = sorted({max(min(size, most), least) for size in GPU_STEPS}, reverse=True)
    share = available_bytes // WORKSPACE_SHARE
    cheap = [
        size for size in sizes if workspace_bytes(spec, request.ledger_options(context, 0, size)) <= share
    ]
    return tuple(cheap or sizes[-1:])
