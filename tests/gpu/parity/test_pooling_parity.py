"""Vectors of prompts beside Hugging Face transformers: the last token's hidden state, and logits of tokens.

The reference is transformers in float32 from the same bf16 weights; the noise of bf16 is float32's distance
to itself with the output of every linear layer and norm rounded to bf16.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "runtime/support"))
from parity_compare import MIN_COSINE, compare, report
from parity_models import CASE_NAMES, CASES, write_model
from parity_reference import Reference, _rounded
from scripted_channel import ScriptedChannel

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.transport.messages import Pooling, SamplingParams, Submit

DEVICE = os.environ.get("WISP_TEST_PARITY_DEVICE", "cuda")
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]
LENGTHS = (1, 16, 17, 130, 700)
TOKENS = (3, 5, 7)


@pytest.fixture(scope="module", params=CASES, ids=CASE_NAMES)
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pooling") / "model"
    reference = Reference(write_model(request.param, folder), DEVICE)
    config = ServeConfig(
        model=str(folder), device=DEVICE, max_concurrent=16, max_context=1024, max_step_tokens=256
    )
    engine = startup.start(config, lambda _: None)
    random = np.random.default_rng(7)
    vocab = request.param.config["vocab_size"]
    yield reference, engine, [random.integers(0, vocab, length).tolist() for length in LENGTHS]
    reference.close()


def last_states(reference, prompt):
    """The last token's state after the final norm, in float32 and in float32 that is rounded."""
    import torch

    model, ids = reference.float32, torch.tensor([prompt], device=DEVICE)
    with torch.inference_mode():
        exact = model.model(ids, use_cache=False).last_hidden_state[0, -1:]
        with _rounded(model):
            rounded = model.model(ids, use_cache=False).last_hidden_state[0, -1:]
        return exact, rounded, model.lm_head(exact)[0]


def test_hidden_states_and_logits_of_last_tokens_are_those_of_transformers(pair):
    reference, engine, prompts = pair
    greedy, requests = SamplingParams(temperature=0.0), []
    for place, prompt in enumerate(prompts):
        for name, pooling in (("last", Pooling("last")), ("logits", Pooling("logits", TOKENS))):
            requests.append(Submit(f"{name}{place}", tuple(prompt), 1, greedy, pooling=pooling))
        requests.append(Submit(f"chat{place}", (1, 2, 3 + place), 40, greedy, ignore_eos=True))
    channel = ScriptedChannel(*requests)
    run(channel, engine.scheduler, engine.runner)
    vectors = {
        event.request_id: np.frombuffer(event.pooled, np.float32).copy()
        for event in channel.events
        if event.pooled is not None
    }
    for place, prompt in enumerate(prompts):
        exact, rounded, logits = last_states(reference, prompt)
        ours, noise = compare(vectors[f"last{place}"][None], exact), compare(rounded, exact)
        report(
            f"last state of {len(prompt)} tokens: {ours}; float32 rounded: {noise}", ours=ours, rounded=noise
        )
        assert ours.cosine >= min(MIN_COSINE, noise.cosine)
        expected = logits[list(TOKENS)].float().cpu().numpy()
        tolerance = 0.05 * float(logits.std())
        np.testing.assert_allclose(vectors[f"logits{place}"], expected, atol=tolerance)
