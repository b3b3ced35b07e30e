"""NVFP4: E2M1 with an E4M3 scale for each 16 channels, and a scale a layer."""

from __future__ import annotations

from wisp_plan.kv_formats.format import KvFormat

NVFP4 = KvFormat("nvfp4", 4, scale_channels=16, largest=6 * 448.0)
