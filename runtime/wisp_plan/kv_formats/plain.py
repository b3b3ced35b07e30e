"""Keys and values as they are computed: bf16 on a GPU, float32 on the CPU."""

from __future__ import annotations

from wisp_plan.kv_formats.format import KvFormat

BF16 = KvFormat("bf16", 16, "bf16")
FLOAT32 = KvFormat("float32", 32, "float32")
