"""Form of a model that the installation's policy does not allow: a Deployment that nobody can start."""

from __future__ import annotations

from dataclasses import replace

from wisp_operator.api import InferenceModel
from wisp_operator.api.pod_template import PodTemplate
from wisp_operator.api.types import Cache, ModelSource

NO_SOURCE = ModelSource("hf://none/none")


def without_refused(model: InferenceModel) -> InferenceModel:
    """Drop from a model all that a policy may refuse, for a Deployment without pods.

    The admission policy of the chart refuses a template with a closed directory, also at zero; and whoever
    may scale the Deployment would start it.
    """
    spec = replace(
        model.spec,
        model=NO_SOURCE,
        runtime=replace(model.spec.runtime, env=()),
        cache=Cache(type="None"),
        pod_template=PodTemplate(),
    )
    return replace(model, spec=spec)
