"""Exactness of hybrids where engines corrupt their output: each trap by its name, on the CPU.

Small models of Gated DeltaNet and attention, and of Mamba-2 beside attention in each layer, whose answers
depend on all of their context. Answers are greedy, so a state of another position, another sequence or
another time gives other tokens.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.execution.cpu_runner import CpuRunner
from wisp_runtime.engine.loop import step
from wisp_runtime.engine.scheduling.deterministic import make_scheduler
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.startup import start
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.layers.cache import allocate

sys.path += [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "models" / "hybrids")]
from mamba_checkpoints import CONFIGS, write
from test_engine_model import TINY, fields_of, write_tiny

HYBRID = TINY | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "max_position_embeddings": 1024,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "rms_norm_eps": 1e-6,
}
RANDOM = np.random.default_rng(11)
ANSWER = 24


def words(count):
    return tuple(RANDOM.integers(0, 96, count).tolist())


def request(name, prompt, tokens=ANSWER, **fields):
    return Submit(name, prompt, tokens, SamplingParams(temperature=0.0), ignore_eos=True, **fields)


@pytest.fixture(scope="module", params=["Gated DeltaNet", "Mamba-2 beside attention"])
def engine(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hybrid") / "tiny"
    if request.param == "Gated DeltaNet":
        write_tiny(folder, config=HYBRID)
    else:
        write(folder, CONFIGS["falcon_h1"])
    config = ServeConfig(str(folder), threads=1, block_tokens=16, max_step_tokens=256, max_concurrent=33)
    return start(config, lambda _: None)


class Served:
    """An engine's model behind a scheduler of its own.

    Args:
        limits: settings other than the engine's; ``positions``: tokens between positions of snapshots.
    """

    def __init__(self, engine, *, block_tokens=None, positions=None, blocks=None, snapshots=None, **limits):
        self.runner, cache = engine.runner, engine.scheduler.limits.cache
        if block_tokens is not None:  # the same memory in blocks of another size
            self.runner = rearranged(engine, block_tokens)
            pools = tuple(
                replace(pool, blocks=pool.blocks * cache.block_tokens // block_tokens) for pool in cache.pools
            )
            cache = replace(cache, block_tokens=block_tokens, pools=pools)
        if blocks is not None:
            cache = replace(cache, pools=tuple(replace(pool, blocks=blocks) for pool in cache.pools))
        if positions is not None:
            cache = replace(cache, snapshot_tokens=positions)
        if snapshots is not None:
            cache = replace(cache, snapshots=snapshots)
        self.scheduler = make_scheduler(Limits(**(fields_of(engine) | {"cache": cache} | limits)))
        self.got: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}

    def submit(self, *requests):
        for each in requests:
            self.got[each.request_id] = []
            assert self.scheduler.submit(each) is None
        return self

    def step(self):
        for event in step(self.scheduler, self.runner):
            assert event.finish in (None, "stop", "length"), event.message
            self.cached.setdefault(event.request_id, event.cached_tokens)
            self.got[event.request_id].append(event.token)

    def run(self, *requests):
        """Run requests to their end; return the last one's tokens."""
        self.submit(*requests)
        while not self.scheduler.is_idle:
            self.step()
        return self.got[requests[-1].request_id] if requests else None


def in_blocks_of(cache, block_tokens):
    """Return as many tokens of cache in blocks of another size."""
    tokens = cache.block_tokens
    pools = tuple(replace(pool, blocks=pool.blocks * tokens // block_tokens) for pool in cache.pools)
    return replace(cache, block_tokens=block_tokens, pools=pools)


def rearranged(engine, block_tokens):
    """Return a runner over the same model, with caches in blocks of ``block_tokens`` tokens."""
    model, cache = engine.runner.forward_pass.model, engine.scheduler.limits.cache
    made = allocate(in_blocks_of(cache, block_tokens), model._ops)
    return CpuRunner(model, made, engine.runner.sample)


def alone(engine, prompt, tokens=ANSWER, **limits):
    """Return the answer to a prompt that finds nothing, in steps as long as it.

    It overwrites blocks and states of the engine's arrays: nothing found before may be used after.
    """
    return Served(engine, reuses_prefixes=False, **limits).run(request("alone", prompt, tokens))


@pytest.mark.parametrize("shared", [64, 65, 127, 128, 129, 191, 192])  # 0, 1 and 63 beyond multiples of 64
@pytest.mark.parametrize("tail", [1, 2, 64])
def test_prefix_hit_is_a_miss_at_every_length(engine, shared, tail):
    """With blocks of one token and snapshots anywhere, hits have exactly these lengths."""
    prefix, served = words(shared), Served(engine, block_tokens=1, positions=1)
    served.run(request("first", (*prefix, 90), 1))
    served.run(request("second visit", (*prefix, 91, 92), 1))
    prompt = prefix + words(tail)
    tokens = served.run(request("hit", prompt))
    assert served.cached["hit"] == shared
    assert tokens == alone(engine, prompt)


@pytest.mark.parametrize("length", [320, 321, 383, 384, 385, 447])
def test_prefix_hit_is_a_miss_where_kernels_chunks_and_blocks_differ(engine, length):
    """Blocks of 16 tokens, positions of 64: a hit ends at the last of these, the tail may be one token."""
    prompt, served = words(length), Served(engine, max_step_tokens=512)
    served.run(request("first", prompt, 1))
    served.run(request("second visit", prompt, 1))
    tokens = served.run(request("hit", prompt))
    assert served.cached["hit"] == (length - 1) // 64 * 64
    assert tokens == alone(engine, prompt)


@pytest.mark.parametrize("length", [513, 514, 528, 529, 575, 576, 577])
def test_the_first_repeat_of_a_long_prompt_is_a_hit_and_a_miss(engine, length):
    """Positions of 16 tokens: 32 of them or more leave a snapshot at the last, where slots are free."""
    prompt, served = words(length), Served(engine, positions=16, max_step_tokens=1024)
    first = served.run(request("first", prompt))
    again = served.run(request("again", prompt))
    assert (served.cached["first"], served.cached["again"]) == (0, (length - 1) // 16 * 16)
    assert first == again == alone(engine, prompt, positions=1024)


@pytest.mark.parametrize(
    "answer", [1, 15, 16, 40]
)  # none of them reaches a position of 64 beyond the prompt's
def test_the_next_turn_after_a_long_prompt_and_a_short_answer_is_a_hit(engine, answer):
    prompt, served = words(515), Served(engine, positions=16, max_step_tokens=1024)
    said = served.run(request("first", prompt, answer))
    turn = (*prompt, *said, *words(20))
    tokens = served.run(request("second", turn))
    computed = len(prompt) + answer - 1
    assert served.cached["second"] == computed // 16 * 16
    assert tokens == alone(engine, turn, positions=1024)


def test_the_next_turn_goes_on_from_the_end_of_the_answer(engine):
    prompt, served = words(100), Served(engine)
    answer = served.run(request("first", prompt, 80))
    turn = (*prompt, *answer, *words(30))
    tokens = served.run(request("second", turn))
    assert served.cached["second"] == 128  # of 179 computed tokens
    assert tokens == alone(engine, turn)


def test_mixed_prefill_and_decode_changes_no_token(engine):
    """Chunks of long prompts beside sequences that decode: each goes on from its own state."""
    prompts = [words(count) for count in (300, 20, 150, 1, 65)]
    served = Served(engine, max_step_tokens=48, mixed_step_tokens=40)
    for number, prompt in enumerate(prompts):
        served.submit(request(str(number), prompt))
        served.step()
        served.step()
    kinds = set()
    while not served.scheduler.is_idle:
        served.step()
        kinds.add(frozenset(chunk.kind for chunk in served.scheduler._last))
    served.run()
    for number, prompt in enumerate(prompts):
        assert served.got[str(number)] == alone(engine, prompt), f"prompt of {len(prompt)} tokens"


def test_a_prompt_in_chunks_of_any_size_is_a_prompt_in_one(engine):
    prompt = words(230)
    expected = alone(engine, prompt)
    for size in (1, 7, 63, 64, 65, 100):
        assert alone(engine, prompt, max_step_tokens=size) == expected, f"chunks of {size}"


@pytest.mark.parametrize("snapshots", [0, 33])
def test_preempted_is_undisturbed(engine, snapshots):
    prompts = [words(100) for _ in range(4)]
    served = Served(engine, blocks=17, snapshots=snapshots)  # less than two of them to their ends
    served.run(*(request(str(number), prompt, 60) for number, prompt in enumerate(prompts)))
    assert served.scheduler.load.preemptions_total > 0
    for number, prompt in enumerate(prompts):
        assert served.got[str(number)] == alone(engine, prompt, 60)


def test_alone_is_beside_32_others(engine):
    prompts = [words(5 + 7 * number) for number in range(33)]
    served = Served(engine)
    served.run(*(request(str(number), prompt) for number, prompt in enumerate(prompts)))
    assert served.scheduler.load.states.slots_total == 33
    for number in (0, 9, 17, 32):
        assert served.got[str(number)] == alone(engine, prompts[number]), f"sequence {number}"


@pytest.mark.parametrize("steps", [1, 2, 4, 9])
def test_an_abort_leaves_its_slot_clean_for_the_next(engine, steps):
    """The next sequence gets the aborted one's slot and blocks, whose contents are another's."""
    served, prompt = Served(engine, max_step_tokens=64, max_concurrent=1), words(90)
    served.submit(request("gone", words(200)))
    for _ in range(steps):
        served.step()
    slot = served.scheduler.running[0].cache.state_slot
    assert served.scheduler.abort("gone") is not None
    assert served.scheduler.load.states.slots_used == 0
    served.submit(request("next", prompt))
    served.step()
    assert served.scheduler.running[0].cache.state_slot == slot
    assert served.run() is None
    assert served.got["next"] == alone(engine, prompt)


def test_snapshots_that_are_evicted_and_taken_again_stay_exact(engine):
    """Two slots for five conversations in turns: a hit is of the state that belongs to it, or none."""
    conversations = [words(300) for _ in range(5)]
    served, turns = Served(engine, snapshots=2), []
    for _ in range(3):
        for index, conversation in enumerate(conversations):
            turns.append((conversation, served.run(request(str(len(turns)), conversation, 70))))
            conversations[index] = (*conversation, *turns[-1][1], *words(9))
    states = served.scheduler.load.states
    assert states.evictions_total > 0
    assert states.hits_total + states.misses_total == 10
    assert states.slots_used == 0
    assert states.snapshots_used <= 2
    for prompt, tokens in turns:
        assert tokens == alone(engine, prompt, 70), f"a turn of {len(prompt)} tokens"


def test_answers_depend_on_tokens_far_behind(engine):
    """A state that is lost shows: without it the tests above would pass with any."""
    prompt = words(200)
    changed = (*words(64), *prompt[64:])
    assert alone(engine, prompt) != alone(engine, changed)
