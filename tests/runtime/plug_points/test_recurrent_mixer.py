"""A mixer of our own with recurrent state, served beside windowed and full attention."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from wisp_plan.families import config, hugging_face, llama
from wisp_plan.spec.cache import State
from wisp_plan.spec.weight import WeightSpec, stacked
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.startup import start
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.layers import registry

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from test_engine_model import TINY, answers, mixed_requests, write_tiny


@dataclass(frozen=True)
class AverageSpec:
    size: int  # of the gated average h = g h + (1 - g) v, with g and v projected from each token

    def cache(self):
        return State(((self.size,),), ("float32",))


class Average:
    def __init__(self, context, _spec):
        self.ops, self.layer = context.ops, context.index
        self.gate_value = context.weights[f"{context.prefix}.gate_value.weight"]

    def __call__(self, x, batch, cache, rows=None):
        (states,) = cache.of_layer(self.layer).arrays
        gate, value = np.split(self.ops.linear(x, self.gate_value), 2, axis=1)
        gate, out = 1 / (1 + np.exp(-gate)), np.empty_like(value)
        for b, slot in enumerate(batch.state_slots):
            for n in range(batch.query_starts[b], batch.query_starts[b + 1]):
                before = states[slot] if batch.positions[n] else np.float32(0)
                states[slot] = out[n] = gate[n] * before + (1 - gate[n]) * value[n]
        return out if rows is None else out[rows]


def average_weights(spec, hidden, name, tensor):
    source = stacked((f"{tensor}.gv", (2 * spec.size, hidden)))
    yield WeightSpec(f"{name}.gate_value.weight", (2 * spec.size, hidden), source, "projection")


def translate(reader):
    spec = llama.translate(reader)
    full, average = spec.layers[0], replace(spec.layers[0], mixer=AverageSpec(spec.hidden))
    return replace(spec, layers=(average, replace(full, mixer=replace(full.mixer, window=10)), average, full))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(config.TRANSLATORS, "Toy", translate)
        patch.setitem(hugging_face.LAYER_WEIGHTS, AverageSpec, average_weights)
        patch.setitem(registry.MIXERS, AverageSpec, Average)
        folder = write_tiny(tmp_path_factory.mktemp("toy") / "toy", config=TINY | {"architectures": ["Toy"]})
        yield start(ServeConfig(str(folder), threads=1, block_tokens=4, max_step_tokens=48), lambda _: None)


@pytest.fixture(scope="module")
def alone(engine):
    """Requests, some of which begin with another's prompt and answer, and their answers alone."""
    got, requests = {}, mixed_requests()[::2]
    for request in requests:
        got |= answers(engine, [request], reuses_prefixes=False)[0]
    for request in requests[1:4]:
        prompt = (*request.prompt, *got[request.request_id], 7, 8)
        requests.append(Submit(f"{request.request_id}-again", prompt, 9, SamplingParams(temperature=0.0)))
        got |= answers(engine, requests[-1:], reuses_prefixes=False)[0]
    return requests, got


@pytest.mark.parametrize("snapshots", [0, 1, 20])
@pytest.mark.parametrize("limits", [{}, {"max_step_tokens": 9}, {"max_concurrent": 2}], ids=str)
def test_batches_chunks_preemption_and_hits_change_no_token(engine, alone, limits, snapshots):
    (requests, expected), sizes = alone, engine.scheduler.limits.cache
    pools = tuple(replace(pool, blocks=30) for pool in sizes.pools)  # two of the longest: preempts
    cache = replace(sizes, pools=pools, snapshots=snapshots, snapshot_tokens=4)
    together, load = answers(engine, requests, cache=cache, **limits)
    assert together == expected
    if snapshots != 1:  # a single one may serve a hit, by the order of requests
        assert (load.cached_tokens_total > 0) == (snapshots > 1)
    assert load.preemptions_total > 0 or limits
