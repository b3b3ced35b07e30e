"""Weights of mixtures of experts, which checkpoints store one by one or, of all experts, in one tensor.

One by one: ``experts.3.gate_proj.weight [F, D]``. In one: ``experts.gate_up_proj [E, 2 F, D]``, gate above
up, and ``experts.down_proj [E, D, F]``, as transformers 5 holds them; or, of GGUF, a tensor each projection:
``experts.gate_proj.weight [E, F, D]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from wisp_plan.families.projections import mlp_weights
from wisp_plan.spec.moe import MoeSpec
from wisp_plan.spec.weight import GateUpRows, Shape, WeightSource, WeightSpec, part_of, stacked


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Names of a family's tensors.

    Attributes:
        block: name in the layer.
        block_in_one: name where all experts are in one tensor; empty: the same.
        router, correction: names in the block.
        gate, up, down: projections of one expert.
        shared, shared_gate: names in the block; Qwen's, whose shared expert has a gate, and DeepSeek's.
        into_latent, from_latent: projections of experts in a latent space.
    """

    block: str = "mlp"
    block_in_one: str = ""
    router: str = "gate"
    correction: str = "gate.e_score_correction_bias"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: tuple[str, str] = ("shared_expert", "shared_experts")
    shared_gate: str = "shared_expert_gate"
    into_latent: str = "fc1_latent_proj"
    from_latent: str = "fc2_latent_proj"


NAMES = ExpertNames()


def moe_weights(
    spec: MoeSpec, hidden: int, name: str, tensor: str, names: ExpertNames = NAMES
) -> Iterator[WeightSpec]:
    """Declare the mixture of a layer, which is ``name`` in the model and ``tensor`` in the checkpoint."""
    block, in_one = f"{tensor}.{names.block}", f"{tensor}.{names.block_in_one or names.block}"
    yield from router_weights(spec, hidden, name, (block, in_one), names)
    experts = f"{block}.experts", f"{in_one}.experts"
    into, out = expert_weights(spec, spec.latent or hidden, name, experts, names)
    shared = _shared_weights(spec, hidden, name, block, names)
    if spec.latent is None:  # the shared expert's lie behind the last one's: a GPU multiplies it as one more
        yield from (into, *shared[:1], out, *shared[1:])
    else:
        yield from (into, out)
        narrow, wide = (spec.latent, hidden), (hidden, spec.latent)
        sources = stacked((f"{block}.{names.into_latent}.weight", narrow))
        yield WeightSpec(f"{name}.into_latent.weight", narrow, sources, "projection")
        sources = stacked((f"{block}.{names.from_latent}.weight", wide))
        yield WeightSpec(f"{name}.from_latent.weight", wide, sources, "projection")
        yield from shared
    if spec.has_shared_gate:
        gate = stacked((f"{block}.{names.shared_gate}.weight", (1, hidden)))
        yield WeightSpec(f"{name}.shared_gate.weight", (1, hidden), gate, "parameter")


def _shared_weights(
    spec: MoeSpec, hidden: int, name: str, block: str, names: ExpertNames
) -> list[WeightSpec]:
    if spec.shared is None:
        return []
    shared = names.shared[0] if spec.has_shared_gate else names.shared[1]
    return list(mlp_weights(spec.shared, hidden, f"{name}.shared", f"{block}.{shared}"))


def router_weights(
    spec: MoeSpec, hidden: int, name: str, blocks: tuple[str, ...], names: ExpertNames = NAMES
) -> Iterator[WeightSpec]:
    """Declare the router of a mixture, in the first of ``blocks`` that a checkpoint has: held like a norm."""
    experts = (spec.router.experts,)

    def weight(part: str, tensor: str, shape: Shape, dtype: str | None = None) -> WeightSpec:
        sources, *others = (stacked((f"{block}.{tensor}", shape)) for block in dict.fromkeys(blocks))
        alternatives = tuple(others)
        return WeightSpec(
            f"{name}.router.{part}", shape, sources, "parameter", dtype=dtype, alternatives=alternatives
        )

    yield weight("weight", f"{names.router}.weight", (*experts, hidden))
    if spec.router.has_bias:
        yield weight("bias", f"{names.router}.bias", experts)
    if spec.router.has_correction_bias:
        yield weight("correction", names.correction, experts, "F32")


def expert_weights(
    spec: MoeSpec, hidden: int, name: str, tensors: tuple[str, str], names: ExpertNames = NAMES
) -> Iterator[WeightSpec]:
    """Declare the experts of a mixture, which ranks share along F.

    Args:
        tensors: names in the checkpoint where experts are stored one by one, and in one.
    """
    tensor, in_one = tensors
    into = (names.gate, names.up) if spec.is_gated else (names.up,)
    experts, outputs = spec.router.experts, len(into) * spec.inner
    rows = GateUpRows() if spec.is_gated else None
    yield WeightSpec(
        f"{name}.experts.gate_up.weight",
        (experts, outputs, hidden),
        _one_by_one(tensor, into, experts, (spec.inner, hidden)),
        "projection",
        shard_axis=1,
        rows=rows,
        alternatives=(
            _in_one(spec, hidden, in_one),
            _by_projection(spec, hidden, tensor, into),
        ),
    )
    down, shape = names.down, (experts, hidden, spec.inner)
    yield WeightSpec(
        f"{name}.experts.down.weight",
        shape,
        _one_by_one(tensor, (down,), experts, shape[1:]),
        "projection",
        shard_axis=2,
        alternatives=(
            stacked((f"{in_one}.down_proj", shape)),
            stacked((f"{tensor}.{down}.weight", shape)),
        ),
    )


def _one_by_one(
    tensor: str, parts: tuple[str, ...], experts: int, shape: tuple[int, int]
) -> tuple[WeightSource, ...]:
    """Return sources of a tensor each expert and part, ``shape``, the parts of one stacked."""
    complete = tuple(map(range, shape))
    return tuple(
        part_of(f"{tensor}.{expert}.{part}.weight", shape, complete, (expert, number * shape[0], 0))
        for expert, (number, part) in product(range(experts), enumerate(parts))
    )


def _in_one(spec: MoeSpec, hidden: int, tensor: str) -> tuple[WeightSource, ...]:
    """Return sources of one tensor of all experts: its gate, and its up, so that ranks can share each."""
    tensor += ".gate_up_proj" if spec.is_gated else ".up_proj"
    experts, parts = spec.router.experts, 1 + spec.is_gated
    shape: Shape = experts, parts * spec.inner, hidden
    halves = (range(part * spec.inner, (part + 1) * spec.inner) for part in range(parts))
    return tuple(
        part_of(tensor, shape, (range(experts), half, range(hidden)), (0, half.start, 0)) for half in halves
    )


def _by_projection(
    spec: MoeSpec, hidden: int, tensor: str, parts: tuple[str, ...]
) -> tuple[WeightSource, ...]:
    """Return sources of a tensor each part, of all experts."""
    shape: Shape = spec.router.experts, spec.inner, hidden
    return tuple(
        part_of(f"{tensor}.{part}.weight", shape, map(range, shape), (0, number * spec.inner, 0))
        for number, part in enumerate(parts)
    )
