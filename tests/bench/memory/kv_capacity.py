"""Tokens that a GiB of GPU memory holds in each KV format: the driver's count beside the ledger's.

    python tests/bench/memory/kv_capacity.py RECORD

The caches of a model are allocated as a server allocates them, and the driver is asked for its free memory
before and after. Needs a GPU, and no weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from wisp_plan.kv_formats.layers import SERVED_KV_FORMATS, KvLayers
from wisp_plan.memory.cache import cache_sizes, kv_bytes_per_token, model_groups
from wisp_plan.presets import shape_spec
from wisp_plan.spec.model import ModelSpec
from wisp_plan.units import GIB
from wisp_runtime.layers.cache import allocate
from wisp_runtime.ops.protocol.cache import CacheOps

SHAPES = ("llama-3-8b", "smollm2-135m")
MIXED_LAYERS = (1, 2)
"""Numbers of first and of last layers in bf16 that are measured beside none."""

BUDGET_BYTES, BLOCK_TOKENS = 8 * GIB, 16
Row = dict[str, object]


def cases() -> Iterator[KvLayers]:
    """Yield every served format alone, and with first and last layers in bf16."""
    for name in SERVED_KV_FORMATS["cuda"]:
        yield KvLayers.of(name)
        if name != "bf16":
            yield from (KvLayers.of(name, plain_layers=layers) for layers in MIXED_LAYERS)


def measure(shape: str, spec: ModelSpec, kv: KvLayers, ops: CacheOps, free_bytes: Callable[[], int]) -> Row:
    """Allocate caches of about 8 GiB, and return what the driver gave for each token."""
    predicted = GIB / kv_bytes_per_token(spec, kv)
    blocks = int(predicted * BUDGET_BYTES / GIB) // BLOCK_TOKENS
    tokens = blocks * BLOCK_TOKENS
    sizes = cache_sizes(
        model_groups(spec, kv),
        blocks,
        block_tokens=BLOCK_TOKENS,
        max_concurrent=1,
        max_step_tokens=tokens,
        max_context=tokens,
    )
    before = free_bytes()
    cache = allocate(sizes, ops)
    taken = before - free_bytes()
    assert len(cache.groups) == len(sizes.pools)
    measured = tokens * GIB / taken
    return {
        "metric": "kv_tokens_per_gib",
        "path": "general",
        "shape": shape,
        "kv": str(kv),
        "tokens": tokens,
        "value": round(measured, 1),
        "ledger": round(predicted, 1),
        "off_percent": round(100 * (measured / predicted - 1), 4),
        "taken_bytes": taken,
        "ledger_bytes": sizes.size_bytes,
    }


@click.command()
@click.argument("record", type=click.Path(dir_okay=False, path_type=Path))
def main(record: Path) -> None:
    """Measure every format, and write the rows to RECORD."""
    from wisp_runtime.ops.cuda.cuda_device import CudaDevice

    device = CudaDevice.open()
    rows = []
    for shape in SHAPES:
        spec = shape_spec(shape)
        for kv in cases():
            rows.append(measure(shape, spec, kv, device.ops, device.gpu.free_bytes))
            click.echo(json.dumps(rows[-1]), err=True)
    record.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    worst = max(abs(float(str(row["off_percent"]))) for row in rows)
    click.echo(f"{len(rows)} formats, at most {worst} % off the ledger")


if __name__ == "__main__":
    main()
