"""Types of ``spec.resources`` and ``spec.podTemplate``: the parts of a Kubernetes pod that a model may set.

A subset on purpose. What could give a pod rights, code or another's memory is absent, or the installation's
to open (:mod:`wisp_operator.core.access.policy`); terms of pod affinity see their own namespace alone, since
an anti-affinity keeps other pods from a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from wisp_operator.api.field_types import Annotation, LabelKey, LabelValue, ObjectName
from wisp_operator.api.quantities import Cores, Quantity
from wisp_operator.api.schema_parser import Items, Range

Weight = Annotated[int, Range(1, 100)]
Labels = Annotated[Mapping[str, LabelValue], Items(32)]


@dataclass(frozen=True, slots=True)
class ResourceAmounts:
    """Amounts of a container's resources; the GPU is ``spec.gpu``."""

    cpu: Cores | None = None
    memory: Quantity | None = None
    ephemeral_storage: Quantity | None = None


@dataclass(frozen=True, slots=True)
class Resources:
    """``spec.resources``: requests and limits of a pod besides its GPU."""

    requests: ResourceAmounts = field(default_factory=ResourceAmounts)
    limits: ResourceAmounts = field(default_factory=ResourceAmounts)


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """A condition on a label of a node."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: Annotated[tuple[LabelValue, ...], Items(32)] = ()


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Conditions that a node must meet together."""

    match_expressions: Annotated[tuple[NodeRequirement, ...], Items(16, min_items=1)]


@dataclass(frozen=True, slots=True)
class NodeSelector:
    """Terms of which a node must meet one."""

    node_selector_terms: Annotated[tuple[NodeTerm, ...], Items(16, min_items=1)]


@dataclass(frozen=True, slots=True)
class PreferredNodeTerm:
    """Conditions that a node should meet, with their weight."""

    weight: Weight
    preference: NodeTerm


@dataclass(frozen=True, slots=True)
class NodeAffinity:
    """Nodes that pods must, or should, run on."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredNodeTerm, ...], Items(16)
    ] = ()


@dataclass(frozen=True, slots=True)
class PodRequirement:
    """A condition on a label of a pod."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: Annotated[tuple[LabelValue, ...], Items(32)] = ()


@dataclass(frozen=True, slots=True)
class PodSelector:
    """Labels of pods; conditions hold together."""

    match_labels: Labels = field(default_factory=dict)
    match_expressions: Annotated[tuple[PodRequirement, ...], Items(16)] = ()


@dataclass(frozen=True, slots=True)
class PodTerm:
    """Pods of the model's namespace, and the label of nodes within whose value they count as near."""

    topology_key: LabelKey
    label_selector: PodSelector


@dataclass(frozen=True, slots=True)
class PreferredPodTerm:
    """Pods to be near to, or far from, if possible, with the term's weight."""

    weight: Weight
    pod_affinity_term: PodTerm


@dataclass(frozen=True, slots=True)
class PodAffinity:
    """Pods to be near to, or for an anti-affinity far from."""

    required_during_scheduling_ignored_during_execution: Annotated[tuple[PodTerm, ...], Items(16)] = ()
    preferred_during_scheduling_ignored_during_execution: Annotated[
        tuple[PreferredPodTerm, ...], Items(16)
    ] = ()


@dataclass(frozen=True, slots=True)
class Affinity:
    """``spec.podTemplate.affinity``: placement relative to nodes and to other pods."""

    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


@dataclass(frozen=True, slots=True)
class TopologySpread:
    """How evenly the model's own pods are spread over the values of a label of nodes."""

    topology_key: LabelKey
    max_skew: Annotated[int, Range(1, 100)] = 1
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """``spec.podTemplate``: metadata, priority and placement of the pods."""

    labels: Labels = field(default_factory=dict)
    annotations: Annotated[Mapping[str, Annotation], Items(32)] = field(default_factory=dict)
    priority_class_name: ObjectName | None = None
    affinity: Affinity | None = None
    topology_spread_constraints: Annotated[tuple[TopologySpread, ...], Items(8, unique="topology_key")] = ()
