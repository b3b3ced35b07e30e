"""YaRN's cosines and sines are transformers', at position 0 and at one and eight trained contexts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wisp_plan.families.reader import ConfigReader
from wisp_plan.families.rope import parse_rope
from wisp_runtime.layers.rotary import rope_tables

# Of transformers 5.24.0, _compute_yarn_parameters: amplitude; then for each position the cosines and the
# sines of the first pair, of those at a quarter, half and three quarters, and of the last.
GPT_OSS = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
QWEN3 = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 32768,
}
DEEPSEEK = {
    "type": "yarn",
    "rope_theta": 1e4,
    "factor": 40.0,
    "mscale": 1.0,
    "mscale_all_dim": 0.707,
    "original_max_position_embeddings": 4096,
}
OWN_FACTOR = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "attention_factor": 1.5,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "original_max_position_embeddings": 1024,
}
EXPECTED = [
    pytest.param(
        GPT_OSS,
        64,
        1.3465735902799727,
        {
            4096: (
                [1.08263, 0.95155, -0.3966, 1.34638, 1.34657],
                [-0.80073, 0.95279, 1.28684, 0.02261, 0.00167],
            ),
            32768: (
                [0.50219, 1.34656, -0.98537, 1.33444, 1.34651],
                [1.24943, 0.00702, 0.91778, 0.18037, 0.01334],
            ),
        },
        id="gpt-oss, bounds not rounded",
    ),
    pytest.param(
        QWEN3,
        128,
        1.138629436111989,
        {
            32768: (
                [0.42464, 0.99353, 0.70097, 1.10064, 1.13857],
                [1.05648, -0.55622, 0.89729, 0.29168, 0.01157],
            ),
            262144: (
                [-1.1346, -0.67032, 0.63635, -0.54752, 1.13487],
                [-0.09577, 0.9204, 0.94421, 0.99835, 0.0925],
            ),
        },
        id="Qwen3, bounds rounded outwards",
    ),
    pytest.param(
        DEEPSEEK,
        64,
        1.0857263992561355,
        {
            4096: (
                [0.87291, 0.40053, -0.93299, 1.08004, 1.08563],
                [-0.64562, 1.00915, -0.55528, 0.11098, 0.01483],
            ),
            32768: (
                [0.40491, -1.07806, -0.4403, 0.74134, 1.07925],
                [1.0074, -0.1288, -0.99244, 0.79323, 0.11837],
            ),
        },
        id="DeepSeek, mscale over mscale_all_dim",
    ),
    pytest.param(
        OWN_FACTOR,
        32,
        1.5,
        {
            1024: (
                [1.48103, -0.44076, 0.43007, 1.48773, 1.49961],
                [-0.2378, 1.43378, 1.43702, 0.19148, 0.03414],
            ),
            8192: (
                [0.4392, -1.09172, -1.02856, 0.77993, 1.4752],
                [-1.43426, 1.02867, -1.09182, 1.28129, 0.27164],
            ),
        },
        id="an attention factor and bounds of its own",
    ),
]


@pytest.mark.parametrize(("section", "size", "amplitude", "expected"), EXPECTED)
def test_yarn_has_the_published_cosines_and_sines(section, size, amplitude, expected):
    config = {"max_position_embeddings": 131072, "rope_parameters": section}
    rope = parse_rope(ConfigReader(config), size)
    assert math.isclose(rope.amplitude, amplitude, rel_tol=1e-12)
    cosines, sines = rope_tables(rope, rope.rotary_size, np.array([0, *expected]))
    assert cosines.shape == sines.shape == (3, size // 2)
    np.testing.assert_allclose(cosines[0], amplitude, rtol=1e-6)
    assert not sines[0].any()
    pairs = [0, size // 8, size // 4, 3 * size // 8, size // 2 - 1]
    for row, (position, (cosine, sine)) in enumerate(expected.items(), start=1):
        # half a float32 ulp of the angle, as transformers computes it, and half a digit of those above
        allowed = 1e-5 + position * 2.0**-24
        np.testing.assert_allclose(cosines[row, pairs], cosine, atol=allowed)
        np.testing.assert_allclose(sines[row, pairs], sine, atol=allowed)
