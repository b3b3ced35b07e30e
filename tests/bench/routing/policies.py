"""Policies that the routing benchmark compares, as routing states of the simulation."""

from __future__ import annotations

import math

from wisp_gateway.routing.load_balancer import EndpointLoad, rendezvous_weight
from wisp_gateway.routing.model_state import ModelState
from wisp_gateway.routing.request_queue import QueuedRequest

LOAD_FACTOR = 1.25


class LeastLoad(ModelState):
    """Load alone."""

    policy = "LeastLoad"


class PrefixAware(ModelState):
    """What each pod has cached, by the gateway's record."""

    policy = "PrefixAware"


class FirstKibibyte(ModelState):
    """The policy before: a hash of the first KiB ranks the pods, within 1.25 even shares of load."""

    policy = "PrefixAware"
    wants_prompts = False

    def _select_endpoint(self, request: QueuedRequest) -> str | None:
        limit = self.model.target_concurrency
        loads = [EndpointLoad(id, pod.slots_used, limit, pod.sequences) for id, pod in self.pods.items()]
        free = [load for load in loads if load.used < load.limit]
        bound = math.ceil(LOAD_FACTOR * (sum(load.sequences for load in loads) + 1) / len(loads))
        below = [load for load in free if load.sequences < bound]
        if below:
            return max(below, key=lambda load: rendezvous_weight(request.prompt.prefix_key, load.id)).id
        return min(free, key=lambda load: load.sequences).id if free else None

    _preferred_endpoint = _select_endpoint


POLICIES = {"LeastLoad": LeastLoad, "first KiB": FirstKibibyte, "PrefixAware": PrefixAware}
