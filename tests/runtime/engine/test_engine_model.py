"""The engine with a real model: a request's tokens depend neither on the batch nor on chunks or reuse."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from wisp_plan.families.config import parse_config
from wisp_plan.memory.cache import one_pool
from wisp_plan.weights.tensors import expected_tensors
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.engine.loop import step
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.errors import WeightsUnreadable

TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}


def write_tiny(folder, scale=1.0, config=TINY):
    """A random model whose answers depend strongly on their context."""
    random = np.random.default_rng(7)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {
        tensor.name: (scale * random.standard_normal(tensor.shape) / np.sqrt(tensor.shape[-1])).astype(
            np.float32
        )
        for tensor in expected_tensors(parse_config(config))
    }
    tensors |= {name: np.ones_like(value) for name, value in tensors.items() if value.ndim == 1}
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("engine") / "tiny")
    return startup.start(
        ServeConfig(model=str(folder), threads=1, block_tokens=4, max_step_tokens=48, max_concurrent=8),
        lambda _: None,
    )


def answers(engine, requests, **limits):
    """Run ``requests`` to their end on a new scheduler over the same model; return tokens and final load."""
    scheduler = Scheduler(type(engine.scheduler.limits)(**(fields_of(engine) | limits)))
    got = {request.request_id: [] for request in requests}
    for request in requests:
        assert scheduler.submit(request) is None
    while not scheduler.is_idle:
        for event in step(scheduler, engine.runner):
            assert event.finish in (None, "stop", "length"), event.message
            got[event.request_id].append(event.token)
    return got, scheduler.load


def fields_of(engine):
    limits = engine.scheduler.limits
    return {name: getattr(limits, name) for name in type(limits).__dataclass_fields__}


def mixed_requests():
    random = np.random.default_rng(3)
    shared = tuple(random.integers(0, 96, 30).tolist())
    requests = []
    for n in range(16):
        tail = tuple(random.integers(0, 96, 1 + 3 * n).tolist())
        sampling = SamplingParams(
            temperature=0.8 * (n % 2),
            seed=n,
            top_p=0.95,
            frequency_penalty=0.1 * (n % 3),
            repetition_penalty=1 + 0.2 * (n % 4 == 1),
        )
        requests.append(Submit(f"r{n}", shared[: 10 * (n % 4)] + tail, 12 + n, sampling))
    return requests


LIMITS = {
    "together": {},
    "no reuse": {"reuses_prefixes": False},
    "chunks": {"max_step_tokens": 9},
    "two at a time": {"max_concurrent": 2},
    "preempted": {"cache": one_pool(30, 4)},  # two of the longest
}


def answers_alone(engine, requests):
    """Run each request alone, without reuse; return tokens."""
    return {
        request.request_id: answers(engine, [request], reuses_prefixes=False)[0][request.request_id]
        for request in requests
    }


def require_tokens(engine, requests, expected, **limits):
    """Run requests together under these limits, of which a cache is one that preempts."""
    together, load = answers(engine, requests, **limits)
    assert together == expected, limits
    assert (load.preemptions_total > 0) == ("cache" in limits)


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_batch_chunks_preemption_and_reuse_change_no_token(tiny, limits):
    requests = mixed_requests()
    alone = answers_alone(tiny, requests)
    require_tokens(tiny, requests, alone, **limits)
    assert len({tuple(tokens) for tokens in alone.values()}) > 12, "the model says the same to everyone"


def test_what_the_model_can_hold_is_what_the_engine_says(tiny):
    assert (tiny.ready.max_context, tiny.ready.vocab_size) == (256, 96)
    assert tiny.ready.ledger["fits"] is True
    assert (
        tiny.ready.ledger["kvCacheBytes"]
        == tiny.runner.forward_pass.cache.keys.nbytes + tiny.runner.forward_pass.cache.values.nbytes
    )


def test_phases_come_in_order_and_weights_count_their_bytes(tmp_path):
    reported = []
    startup.start(ServeConfig(model=str(write_tiny(tmp_path / "tiny")), threads=1), reported.append)
    assert [phase.name for phase in reported if phase.is_done] == ["pull", "weights", "kernels", "firstToken"]
    size = next(phase for phase in reported if phase.name == "weights" and phase.is_done)
    assert 0 < size.bytes == size.total_bytes


def test_weights_that_give_no_numbers_are_found_before_anyone_asks(tmp_path):
    folder = write_tiny(tmp_path / "tiny", scale=float("nan"))
    with pytest.raises(WeightsUnreadable, match="not finite") as failure:
        startup.start(ServeConfig(model=str(folder), threads=1), lambda _: None)
    assert failure.value.message == (
        "the start's first token: the model's logits were not finite numbers (overflow or damaged weights). "
        "Check the checkpoint's dtype and files, or download it again."
    )


@pytest.mark.model
def test_a_prefix_of_500_tokens_is_computed_once_and_changes_no_token(smollm2_dir):
    config = ServeConfig(model=str(smollm2_dir), max_context=1024, kv_cache_memory=128 << 20)
    engine = startup.start(config, lambda _: None)
    shared = tuple(int(token) for token in np.random.default_rng(1).integers(1000, 40000, 500))
    greedy = SamplingParams(temperature=0.0)
    first, second = (Submit(name, (*shared, 504 + n, 288, 260), 6, greedy) for n, name in enumerate("ab"))
    with_reuse, load = answers(engine, [first], max_step_tokens=512)
    assert load.cached_tokens_total == 0
    missed, load = answers(engine, [second], reuses_prefixes=False)
    assert load.prompt_tokens_total == 503
    both, load = answers(engine, [first, second], max_step_tokens=503)
    assert both == with_reuse | missed
    # 31 full blocks of 16 are shared; the second computes its own 7 tokens beyond them.
    assert (load.prompt_tokens_total, load.cached_tokens_total) == (503 + 7, 496)
