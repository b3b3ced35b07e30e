"""FP8 (E4M3) with a scale a layer: half of bf16's bytes."""

from __future__ import annotations

from wisp_plan.kv_formats.format import KvFormat

FP8 = KvFormat("fp8", 8, largest=448.0)
