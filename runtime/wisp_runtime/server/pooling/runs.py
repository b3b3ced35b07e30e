"""Run many prompts that are pooled on the engine, a bounded number of them at a time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence

from wisp_runtime.engine.transport.messages import Pooling, SamplingParams, Submit
from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.service import Service

MIN_IN_FLIGHT = 4
GREEDY = SamplingParams(temperature=0.0)


async def pool(
    service: Service,
    prompts: Sequence[tuple[int, ...]],
    pooling: Pooling,
    priority: int,
    *,
    shares_prefixes: bool = False,
) -> list[bytes]:
    """Return the vector of each of ``prompts``: float32 numbers in this machine's order of bytes.

    Twice as many as a step takes are in flight: the rest waits here, not in the engine's queue. There one of
    them is in line as a request of its own, and the others as further choices: strangers go first.

    Args:
        service: the model.
        prompts: tokens.
        pooling: kind of vector.
        priority: level of priority; lower runs first.
        shares_prefixes: whether prompts use the prefix cache, and stay in it.

    Raises:
        ApiError: the device computes no such vectors, or the engine failed.
    """
    if pooling.kind not in service.info.poolings:
        raise bad_request(
            f"This server's device does not compute {pooling.kind!r} pooling.", "model", "unsupported_pooling"
        )
    vectors: list[bytes] = [b""] * len(prompts)
    places = iter(range(len(prompts)))

    async def work(choice: int) -> None:
        for place in places:
            submit = Submit(
                request_id=uuid.uuid4().hex,
                prompt=prompts[place],
                max_tokens=1,
                sampling=GREEDY,
                priority=priority,
                choice=choice,
                use_prefix_cache=shares_prefixes,
                pooling=pooling,
            )
            vectors[place] = await service.text.generator.pooled(submit)

    in_flight = min(len(prompts), max(MIN_IN_FLIGHT, 2 * service.info.max_concurrent))
    tasks = [asyncio.create_task(work(min(index, 1))) for index in range(in_flight)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return vectors
