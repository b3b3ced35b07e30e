"""Report of the experts' load, made when the server asks for it: nothing is read otherwise."""

from __future__ import annotations

from wisp_runtime.engine.transport.messages import ExpertReport
from wisp_runtime.layers.expert_load import ExpertLoad


def expert_report(load: ExpertLoad, steps: int) -> ExpertReport:
    """Return the load of ``steps`` steps since the engine was ready; waits for the device."""
    tokens, hits = load.read().swapaxes(0, 1)
    means = tokens.sum(axis=1) / load.experts
    busiest = [
        (layer, float(most / mean))
        for layer, most, mean in zip(load.layers, tokens.max(axis=1), means, strict=True)
        if mean
    ]
    return ExpertReport(
        tokens=tuple(tokens.sum(axis=0).tolist()),
        hits=int(hits.sum()),
        passes=steps * len(load.layers),
        busiest=tuple(busiest),
    )
