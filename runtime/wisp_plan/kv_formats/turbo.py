"""Rotated formats: a Walsh-Hadamard transform of each head, then FP8, or a codebook for Gaussian values.

After the transform a row's channels are close to Gaussian, whatever outliers it had; the codebooks are those
of Lloyd and Max for that distribution, with a scale for each 16 channels: a byte of 5 exponent bits and 3
mantissa bits.

Source: TurboQuant, arXiv:2504.19874; Lloyd 1982, Max 1960.
"""

from __future__ import annotations

from wisp_plan.kv_formats.format import KvFormat

TURBO8 = KvFormat("turbo8", 8, largest=448.0, is_rotated=True)
TURBO4 = KvFormat("turbo4", 4, scale_channels=16, is_rotated=True)
TURBO3 = KvFormat("turbo3", 3, scale_channels=16, is_rotated=True)
