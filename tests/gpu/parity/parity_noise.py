"""Noise of bf16 in each row of a stream, sampled: bounds where rows differ too much for one sample to tell.

Rounding hits the rows of a hybrid unequally. Where the output of a Gated DeltaNet head is nearly zero, its
norm amplifies what q, k and the convolution were rounded by, a hundredfold: on one such row two correct
programs that round in other places lie ten times as far from float32 as each other. So each row is compared
with its own noise: the largest distance of :data:`SAMPLES` float32 models that round where our kernels do,
each on another grid.

Measured with our kernels' rounding emulated in transformers (Qwen3.5 and Qwen3-Next, 11,000 rows): the median
row has 0.65 times its noise, 99 of 100 have at most 1.9 times, the worst 12 times. A decay that is 5 % off,
or a beta 3 % off, fails.
"""

from __future__ import annotations

from typing import Any

import torch
from parity_compare import MIN_COSINE

SAMPLES = 8
MAX_MEDIAN_RATIO, MIN_MEDIAN_ROWS = 1.5, 16
MAX_TYPICAL_RATIO, TYPICAL_SHARE, MIN_TYPICAL_ROWS = 3.0, 0.99, 200
MAX_ROW_RATIO, MAX_WORST_RATIO = 20.0, 2.0


def distances(found: Any, expected: Any) -> Any:
    """Return 1 - cosine of each row of ``[S, D]`` arrays, in float64; of NaN infinity."""
    expected = torch.as_tensor(expected)
    a, b = torch.as_tensor(found).to(expected.device, torch.float64), expected.double()
    norms = (a.square().sum(1) * b.square().sum(1)).clamp_min(1e-300).sqrt()
    return torch.nan_to_num(1 - (a * b).sum(1) / norms, nan=torch.inf)


def noise_faults(ours: Any, samples: list[Any]) -> list[str]:
    """List what of our distances ``[S]`` the noise does not explain, given ``samples`` of it, as many each.

    A distance of up to 1 - MIN_COSINE is always alike.
    """
    floor = 1 - MIN_COSINE
    noise = torch.stack(samples).max(0).values
    ratios = ours / noise.clamp_min(floor)
    faults = []
    limit = torch.maximum(MAX_ROW_RATIO * noise, MAX_WORST_RATIO * noise.max()).clamp_min(floor)
    if bool((ours > limit).any()):
        row = int((ours / limit).argmax())
        faults.append(f"row {row} is {float(ours[row]):.3g} off, its noise is {float(noise[row]):.3g}")
    if len(ours) >= MIN_MEDIAN_ROWS and float(ratios.median()) > MAX_MEDIAN_RATIO:
        faults.append(f"the median row is off by {float(ratios.median()):.2f} times its noise")
    share = float((ratios > MAX_TYPICAL_RATIO).double().mean())
    if len(ours) >= MIN_TYPICAL_ROWS and share > 1 - TYPICAL_SHARE:
        faults.append(f"{share:.1%} of rows are off by more than {MAX_TYPICAL_RATIO:g} times their noise")
    return faults
