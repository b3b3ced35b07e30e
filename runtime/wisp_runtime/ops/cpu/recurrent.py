"""Recurrent mixers of the CPU: the reference functions behind checks of every shape."""

from __future__ import annotations

from wisp_plan.spec.delta_net import DeltaNetSpec
from wisp_runtime.batch import Array, Batch
from wisp_runtime.ops import reference
from wisp_runtime.ops.protocol import checks
from wisp_runtime.ops.protocol.recurrent import DeltaNetWeights


class RecurrentMixers:
    """Recurrent mixers, as :class:`.ops.CpuOps` has them; states are float32."""

    def delta_net(
        self,
        projected: Array,
        gates: Array,
        weights: DeltaNetWeights,
        spec: DeltaNetSpec,
        batch: Batch,
        states: Array,
        inputs: Array,
        rows: Array | None = None,
    ) -> Array:
        """See :func:`.reference.delta_net`."""
        checks.delta_net(projected, gates, weights, spec, batch)
        checks.same_shape("states", states, (len(inputs), *spec.cache().shapes[0]))
        checks.same_shape("inputs", inputs, (len(states), *spec.cache().shapes[1]))
        return reference.delta_net(projected, gates, weights, spec, batch, states, inputs, rows)
