"""A feed-forward block of our own: a router sends each token to one of two experts, served on the CPU."""

from dataclasses import dataclass, replace

import numpy as np
from safetensors.numpy import load_file
from test_engine_model import TINY, answers, write_tiny  # tests/runtime/engine

from wisp_plan.families import config, hugging_face, llama
from wisp_plan.spec.weight import GateUpRows, WeightSpec, stacked
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.startup import start
from wisp_runtime.engine.transport.messages import SamplingParams, Submit
from wisp_runtime.layers import registry


@dataclass(frozen=True)
class TwoExpertSpec:
    inner: int


class TwoExperts:
    def __init__(self, context, _spec):
        names = (f"{context.prefix}.{part}.weight" for part in ("router", "gate_up", "down"))
        self.router, self.gate_up, self.down = map(context.weights.__getitem__, names)
        self.ops = context.ops

    def __call__(self, x):
        chosen, out = self.ops.linear(x, self.router).argmax(axis=1), np.empty_like(x)
        for expert in np.unique(chosen):
            rows = np.flatnonzero(chosen == expert)
            inner = self.ops.swiglu(self.ops.gather_rows(x, rows), self.gate_up[expert])
            out[rows] = self.ops.linear(inner, self.down[expert])
        return out


def expert_weights(spec, hidden, name, tensor):
    shapes = {"router": (2, hidden), "gate_up": (2, 2 * spec.inner, hidden), "down": (2, hidden, spec.inner)}
    for part, shape in shapes.items():
        sources, rows = stacked((f"{tensor}.{part}", shape)), GateUpRows() if part == "gate_up" else None
        yield WeightSpec(f"{name}.{part}.weight", shape, sources, "projection", rows=rows)


def translate(reader):
    spec = llama.translate(reader)
    layers = tuple(replace(layer, ffn=TwoExpertSpec(layer.ffn.inner)) for layer in spec.layers)
    return replace(spec, layers=layers)


def norm(x):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def next_token_in_numpy(tensors, tokens, chosen):
    x, n = tensors["model.embed_tokens.weight"][tokens], len(tokens)
    angles = np.arange(n)[:, None, None] * 10000.0 ** -(np.arange(4) / 4)

    def rotate(heads):
        rotated = (heads[..., :4] + 1j * heads[..., 4:]) * np.exp(1j * angles)
        return np.concatenate([rotated.real, rotated.imag], axis=2)

    for layer in range(TINY["num_hidden_layers"]):
        own = {name.split(".", 3)[3]: value for name, value in tensors.items() if f"layers.{layer}." in name}
        q, k, v = ((norm(x) @ own[f"self_attn.{part}_proj.weight"].T).reshape(n, -1, 8) for part in "qkv")
        k, v = (np.repeat(heads, 2, axis=1) for heads in (rotate(k), v))
        scores = np.einsum("nhd,mhd->hnm", rotate(q), k) / np.sqrt(8)
        scores = np.exp(np.where(np.tri(n, dtype=bool), scores, -np.inf))
        mixed = np.einsum("hnm,mhd->nhd", scores / scores.sum(axis=2, keepdims=True), v)
        x = x + mixed.reshape(n, -1) @ own["self_attn.o_proj.weight"].T
        h = norm(x)
        experts = (h @ own["router"].T).argmax(axis=1)
        gate, up = np.split(np.einsum("nd,nfd->nf", h, own["gate_up"][experts]), 2, axis=1)
        x = x + np.einsum("nf,ndf->nd", gate / (1 + np.exp(-gate)) * up, own["down"][experts])
        chosen.update((layer, expert) for expert in experts.tolist())
    return int((norm(x[-1]) @ tensors["lm_head.weight"].T).argmax())


def test_a_served_model_of_two_experts_equals_its_numpy_reference(tmp_path, monkeypatch):
    monkeypatch.setitem(config.TRANSLATORS, "Toy", translate)
    monkeypatch.setitem(hugging_face.LAYER_WEIGHTS, TwoExpertSpec, expert_weights)
    monkeypatch.setitem(registry.FFNS, TwoExpertSpec, TwoExperts)
    folder = write_tiny(tmp_path / "toy", config=TINY | {"architectures": ["Toy"]})
    engine = start(ServeConfig(str(folder), threads=1, block_tokens=4, max_step_tokens=32), lambda _: None)
    tensors, chosen, greedy = load_file(folder / "model.safetensors"), set(), SamplingParams(temperature=0.0)
    prompts = [np.random.default_rng(n).integers(0, 96, 3 + 9 * n).tolist() for n in range(4)]
    served, _ = answers(engine, [Submit(str(n), tuple(prompts[n]), 12, greedy) for n in range(4)])
    for n, tokens in served.items():
        for count, token in enumerate(tokens):
            assert token == next_token_in_numpy(tensors, prompts[int(n)] + tokens[:count], chosen)
    assert len(chosen) == 2 * TINY["num_hidden_layers"]
