"""Prompts that are reduced to a vector: against float64, alone or in a batch, in chunks, with prefix hits."""

import json

import numpy as np
import pytest
from float64_llama import Float64Llama
from safetensors.numpy import load_file, save_file
from test_engine_model import TINY, fields_of, write_tiny

from wisp_plan.memory.cache import one_pool
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.engine.loop import step
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.transport.messages import Pooling, SamplingParams, Submit

QWEN3 = TINY | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 16,
    "tie_word_embeddings": True,
}
KINDS = {"last": Pooling("last"), "mean": Pooling("mean"), "logits": Pooling("logits", (7, 90, 3))}
FLOAT32 = 2e-5  # of vectors whose numbers are about 1


def start(folder):
    config = ServeConfig(model=str(folder), threads=1, block_tokens=4, max_step_tokens=48, max_concurrent=8)
    return startup.start(config, lambda _: None)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request, tmp_path_factory):
    config = {"llama": TINY, "qwen3": QWEN3}[request.param]
    folder = write_tiny(tmp_path_factory.mktemp("pooling") / "tiny", config=config)
    return start(folder), Float64Llama(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return start(write_tiny(tmp_path_factory.mktemp("pooling") / "tiny"))


def embed(name, prompt, kind, **fields):
    return Submit(name, tuple(prompt), 1, SamplingParams(temperature=0.0), pooling=KINDS[kind], **fields)


def chat(name, prompt, tokens=12):
    return Submit(name, tuple(prompt), tokens, SamplingParams(temperature=0.0), ignore_eos=True)


def scheduler_of(engine, **limits):
    return make_scheduler(type(engine.scheduler.limits)(**(fields_of(engine) | limits)))


def run(engine, requests, scheduler=None, **limits):
    """Run ``requests`` to their end; return vectors, and lists of tokens of those that generate."""
    scheduler = scheduler or scheduler_of(engine, **limits)
    got = {request.request_id: [] for request in requests}
    for request in requests:
        assert scheduler.submit(request) is None
    while not scheduler.is_idle:
        for event in step(scheduler, engine.runner):
            assert event.finish in (None, "stop", "length"), event.message
            if event.pooled is not None:
                assert (event.token, event.finish) == (None, "stop")
                got[event.request_id] = np.frombuffer(event.pooled, np.float32)
            else:
                got[event.request_id].append(event.token)
    assert scheduler.load.kv_blocks_used == 0
    return got


def prompts(count, longest=60, seed=5):
    random = np.random.default_rng(seed)
    return [random.integers(0, 96, random.integers(1, longest)).tolist() for _ in range(count)]


def expected(reference, prompt, kind):
    states = reference.states(prompt)
    return {
        "last": lambda: states[-1],
        "mean": lambda: states.mean(axis=0),
        "logits": lambda: reference.logits(prompt)[list(KINDS["logits"].token_ids)],
    }[kind]()


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_those_of_the_formula_in_float64(model, kind):
    engine, reference = model
    texts = [[5], *prompts(6, longest=90)]  # longer ones take two chunks
    got = run(engine, [embed(str(n), prompt, kind) for n, prompt in enumerate(texts)])
    for n, prompt in enumerate(texts):
        np.testing.assert_allclose(got[str(n)], expected(reference, prompt, kind), atol=FLOAT32, rtol=FLOAT32)


LIMITS = {
    "alone": {"max_concurrent": 1},
    "chunks of 5": {"max_step_tokens": 5, "max_concurrent": 4},
    "a cache that preempts": {"cache": one_pool(20, 4), "max_concurrent": 6, "max_step_tokens": 8},
    "prefills apart": {"separate_prefill_decode": True},
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_chunks_batches_and_preemption_change_neither_vectors_nor_generated_tokens(tiny, limits):
    texts = prompts(12, longest=30)
    kinds = [*KINDS] * 4
    requests = [
        chat(f"c{n}", prompt, tokens=30) if n % 3 == 0 else embed(f"e{n}", prompt, kinds[n % 4])
        for n, prompt in enumerate(texts)
    ]
    alone = {request.request_id: run(tiny, [request])[request.request_id] for request in requests}
    scheduler = scheduler_of(tiny, **limits)
    together = run(tiny, requests, scheduler)
    assert ("cache" in limits) == (scheduler.load.preemptions_total > 0)
    for name, values in alone.items():
        if name.startswith("c"):
            assert together[name] == values
        else:
            np.testing.assert_allclose(together[name], values, atol=FLOAT32, rtol=FLOAT32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [21, 24, 25])  # of blocks of 4: 5 to 6 are found, all but one token of 25
def test_a_prefix_hit_changes_no_vector(tiny, kind, length):
    (prompt,) = prompts(1, seed=9)
    prompt = (prompt * 9)[:length]
    scheduler = scheduler_of(tiny)
    cold = run(tiny, [embed("cold", prompt, kind)], scheduler)["cold"]
    run(tiny, [chat("warms", prompt)], scheduler)
    before = scheduler.load.cached_tokens_total
    warm = run(tiny, [embed("warm", prompt, kind), chat("beside", [1, 2, 3])], scheduler)["warm"]
    np.testing.assert_allclose(warm, cold, atol=FLOAT32, rtol=FLOAT32)
    reused = scheduler.load.cached_tokens_total - before
    assert reused == (0 if kind == "mean" else (length - 1) // 4 * 4)


def test_pooled_prompts_are_not_counted_as_generated_tokens(tiny):
    scheduler = scheduler_of(tiny)
    run(tiny, [embed("a", [1, 2], "last"), chat("b", [3], tokens=5)], scheduler)
    assert scheduler.load.generated_tokens_total == 5


def test_a_prompt_that_is_pooled_may_fill_the_context_and_no_more(tiny):
    longest = tiny.ready.max_context
    vector = run(tiny, [embed("full", [3] * longest, "mean")])["full"]
    assert vector.shape == (TINY["hidden_size"],)
    refused = scheduler_of(tiny).submit(embed("more", [3] * (longest + 1), "last"))
    assert (refused.finish, refused.token) == ("refused", None)
    assert f"{longest + 1} tokens" in refused.message
    # A chat needs a token more than its prompt, also when it shares the prompt of one that was pooled.
    scheduler, full = scheduler_of(tiny), embed("full", [3] * longest, "last")
    assert scheduler.submit(full) is None
    assert scheduler.submit(Submit("chat", full.prompt, 1)).finish == "refused"


@pytest.mark.parametrize(
    ("pooling", "poolings", "says"),
    [
        (Pooling("mean"), {"last"}, "these kinds are: last"),
        (Pooling("last"), set(), "none"),
        (Pooling("logits"), {"logits"}, "0 tokens"),
        (Pooling("logits", (1,) * 9), {"logits"}, "1 to 8"),
        (Pooling("logits", (1, 96)), {"logits"}, "0 … 95"),
    ],
)
def test_a_kind_that_cannot_be_computed_is_refused(tiny, pooling, poolings, says):
    scheduler = scheduler_of(tiny, poolings=frozenset(poolings))
    event = scheduler.submit(Submit("a", (1, 2), 1, pooling=pooling))
    assert event.finish == "refused"
    assert says in event.message


def test_states_that_are_no_numbers_end_that_request_alone(tiny, monkeypatch):
    forward = type(tiny.runner.forward_pass.model).forward

    def spoiled(self, batch, cache):
        output = forward(self, batch, cache)
        output.hidden[batch.tokens[batch.logit_rows] == 66] = np.inf
        return output

    monkeypatch.setattr(type(tiny.runner.forward_pass.model), "forward", spoiled)
    scheduler = scheduler_of(tiny)
    for name, prompt in (("bad", [1, 66]), ("good", [1, 2])):
        scheduler.submit(embed(name, prompt, "last"))
    events = {event.request_id: event for event in step(scheduler, tiny.runner)}
    assert events["bad"].finish == "error"
    assert "not finite" in events["bad"].message
    assert events["good"].pooled is not None


def test_an_abort_between_chunks_frees_the_blocks(tiny):
    scheduler = scheduler_of(tiny, max_step_tokens=5)
    scheduler.submit(embed("a", [3] * 20, "mean"))
    assert step(scheduler, tiny.runner) == []
    assert scheduler.abort("a").finish == "abort"
    assert scheduler.is_idle
    assert scheduler.load.kv_blocks_used == 0


def test_a_start_reports_the_kinds_and_the_size(tiny):
    assert tiny.ready.poolings == {"last", "mean", "logits"}
    assert tiny.ready.hidden_size == TINY["hidden_size"]


@pytest.mark.parametrize("ties", [True, False])
def test_a_checkpoint_without_head_and_prefix_gives_the_same_vectors(tmp_path, ties):
    config = QWEN3 | {"tie_word_embeddings": ties}
    folder = write_tiny(tmp_path / "usual", config=config)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.json").write_text(json.dumps(config | {"architectures": ["Qwen3Model"]}))
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    save_file(
        {name.removeprefix("model."): value for name, value in tensors.items()}, bare / "model.safetensors"
    )
    requests = [embed(str(n), prompt, "last") for n, prompt in enumerate(prompts(3))]
    usual, same = (run(start(place), requests) for place in (folder, bare))
    for name, vector in usual.items():
        np.testing.assert_allclose(same[name], vector, atol=1e-6)
