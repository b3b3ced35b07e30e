"""Log-probabilities of prompts, against float64: in batches and chunks, after hits and preemption."""

from itertools import pairwise

import numpy as np
import pytest
from float64_llama import Float64Llama
from test_engine_model import fields_of, write_tiny

from wisp_plan.memory.cache import one_pool
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine import startup
from wisp_runtime.engine.loop import step
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.transport.messages import SamplingParams, Submit

ROWS = 8
FLOAT32 = 2e-5  # of log-probabilities of about 5


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_tiny(tmp_path_factory.mktemp("scored") / "tiny")
    config = ServeConfig(
        model=str(folder), threads=1, block_tokens=4, max_step_tokens=48, max_concurrent=ROWS
    )
    return startup.start(config, lambda _: None), Float64Llama(folder)


def scored(name, prompt, alternatives=3, tokens=2, **sampling):
    params = SamplingParams(temperature=0.0, prompt_logprobs=alternatives, **sampling)
    return Submit(name, tuple(prompt), tokens, params, ignore_eos=True)


def run(engine, requests, scheduler=None, **limits):
    """Run ``requests`` to their end; return the scores of their prompts, their tokens, and those's scores."""
    scheduler = scheduler or make_scheduler(type(engine.scheduler.limits)(**(fields_of(engine) | limits)))
    of_prompts, tokens, of_tokens = ({request.request_id: [] for request in requests} for _ in range(3))
    for request in requests:
        assert scheduler.submit(request) is None
    while not scheduler.is_idle:
        plan = scheduler.plan()
        assert sum(chunk.logits for chunk in plan) <= ROWS
        launched = engine.runner.forward(plan)
        launched.sample()
        for event in scheduler.commit(plan, launched.sampled_tokens()):
            assert event.finish in (None, "stop", "length"), event.message
            assert not (event.prompt_logprobs and tokens[event.request_id]), "too late"
            of_prompts[event.request_id] += event.prompt_logprobs
            if event.token is not None:
                tokens[event.request_id].append(event.token)
                of_tokens[event.request_id].append(event.logprobs)
    assert scheduler.load.kv_blocks_used == 0
    return of_prompts, tokens, of_tokens


def prompts(count, longest=60, seed=5):
    random = np.random.default_rng(seed)
    return [random.integers(0, 96, random.integers(1, longest)).tolist() for _ in range(count)]


def expected(reference, prompt):
    """Return ``[S - 1, V]``, the log-probabilities behind each token of a prompt but the last."""
    head = reference.tensors["lm_head.weight"]
    logits = reference.states(prompt)[:-1] @ head.T
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def assert_close(scores, want, prompt):
    assert len(scores) == len(prompt) - 1
    for place, (score, row) in enumerate(zip(scores, want, strict=True)):
        assert score.chosen == pytest.approx(row[prompt[place + 1]], abs=FLOAT32)
        best = np.sort(row)[::-1][: len(score.top)]
        np.testing.assert_allclose([value for _, value in score.top], best, atol=FLOAT32)
        np.testing.assert_allclose([row[token] for token, _ in score.top], best, atol=FLOAT32)


@pytest.mark.parametrize("deterministic", [False, True])
def test_scores_of_a_batch_are_those_of_float64_and_chats_beside_them_do_not_notice(model, deterministic):
    engine, reference = model
    texts = [[3], [3, 9], *prompts(12)]
    asked = [scored(f"s{n}", prompt, alternatives=n % 5) for n, prompt in enumerate(texts)]
    chats = [
        Submit(f"c{n}", tuple(prompt), 12, SamplingParams(temperature=0.0), ignore_eos=True)
        for n, prompt in enumerate(prompts(6, seed=8))
    ]
    mixed = [request for pair in zip(asked, chats, strict=False) for request in pair] + asked[len(chats) :]
    limits = {"separate_prefill_decode": deterministic}
    of_prompts, tokens, _ = run(engine, mixed, **limits)
    for request, prompt in zip(asked, texts, strict=True):
        assert_close(of_prompts[request.request_id], expected(reference, prompt), prompt)
        assert all(
            len(each.top) == request.sampling.prompt_logprobs for each in of_prompts[request.request_id]
        )
    alone = run(engine, chats, **limits)[1]
    assert {name: tokens[name] for name in alone} == alone


@pytest.mark.parametrize(
    "limits", [{"max_step_tokens": 5}, {"max_step_tokens": 16, "cache": one_pool(32, 4)}]
)
def test_neither_chunks_nor_a_cached_prefix_nor_preemption_change_them(model, limits):
    engine, reference = model
    texts = [*prompts(4, longest=100, seed=9)]
    scheduler = make_scheduler(type(engine.scheduler.limits)(**(fields_of(engine) | limits)))
    for number in range(2):  # the second time all prefixes are in the cache
        asked = [scored(f"s{number}{n}", prompt, tokens=20) for n, prompt in enumerate(texts)]
        asked += [
            Submit(f"c{number}{n}", tuple(prompt), 30, SamplingParams(), ignore_eos=True)
            for n, prompt in enumerate(texts)
        ]
        of_prompts, _, _ = run(engine, asked, scheduler)
        for request, prompt in zip(asked, texts, strict=False):
            assert_close(of_prompts[request.request_id], expected(reference, prompt), prompt)
    assert ("cache" in limits) == (scheduler.load.preemptions_total > 0)


def test_a_prompts_scores_are_those_of_the_same_tokens_when_they_were_generated(model):
    engine, _ = model
    (prompt,) = prompts(1, seed=3)
    asked = Submit(
        "a", tuple(prompt), 20, SamplingParams(temperature=0.7, seed=1, logprobs=4), ignore_eos=True
    )
    _, tokens, generated = run(engine, [asked])
    again, _, _ = run(engine, [scored("b", prompt + tokens["a"], alternatives=4)])
    for score, before in zip(again["b"][len(prompt) - 1 :], generated["a"], strict=True):
        assert score.chosen == pytest.approx(before.chosen, abs=FLOAT32)
        assert [token for token, _ in score.top] == [token for token, _ in before.top]


def test_a_waiting_request_is_admitted_beside_a_long_prompt_that_is_scored(model):
    engine, _ = model
    names = set()
    scheduler = make_scheduler(type(engine.scheduler.limits)(**fields_of(engine)))
    scheduler.submit(scored("long", [5] * 200))
    scheduler.submit(Submit("short", (1, 2, 3), 2, SamplingParams(temperature=0.0)))
    for _ in range(3):
        plan = scheduler.plan()
        names |= {chunk.sequence.id for chunk in plan}
        launched = engine.runner.forward(plan)
        launched.sample()
        scheduler.commit(plan, launched.sampled_tokens())
    assert names == {"long", "short"}


def allowed(ids, vocab=96):
    words = np.zeros(-(-vocab // 32) * 32, np.bool_)
    words[ids] = True
    return np.packbits(words, bitorder="little").tobytes()


def generate(engine, tokens=12, stops=(), **sampling):
    params = SamplingParams(**{"temperature": 0.0} | sampling)
    request = Submit("a", (7, 3, 9), tokens, params, stop_token_ids=tuple(stops), ignore_eos=True)
    return run(engine, [request])[1]["a"]


def test_rules_of_a_request_hold_and_others_go_on_as_before(model):
    engine, _ = model
    free = generate(engine)
    assert generate(engine, stops=[free[4]])[-1] == free[4]
    for least in (5, 9):
        kept = generate(engine, stops=set(range(96)) - {2, 3}, min_tokens=least)
        assert len(kept) > least or set(kept[least:]) <= {2, 3}
        assert set(kept[:least]) <= {2, 3}
    assert set(generate(engine, allowed_tokens=allowed([4, 80]))) <= {4, 80}
    banned = generate(engine, bad_words=((free[0],), (free[1], free[2])))
    assert free[0] not in banned
    assert (free[1], free[2]) not in pairwise(banned)
    second = generate(engine, bad_words=((free[1], free[2]),))
    assert second[:2] == free[:2]
    assert second[2] != free[2]
    assert generate(engine, min_tokens=3) == free


def test_rules_that_leave_no_token_end_the_request_with_a_reason(model):
    engine, _ = model
    scheduler = make_scheduler(type(engine.scheduler.limits)(**fields_of(engine)))
    params = SamplingParams(temperature=0.0, allowed_tokens=allowed([4]), bad_words=((4,),))
    scheduler.submit(Submit("a", (7,), 5, params))
    (event,) = step(scheduler, engine.runner)
    assert event.finish == "refused"
    assert "no token" in event.message
