"""Ownership of a cluster object: a model's own, a stranger's, or left by a model of the same name.

Pure. An object is a model's if its controller reference holds the model's uid. A name or a label proves
nothing: anybody may give an object the name of a model to come, or our label.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from wisp_operator.api import KIND, InferenceModel
from wisp_operator.core.observation import BlockedChild

Document = Mapping[str, Any]
Owner = Literal["model", "stranger", "former"]


def owner_of(live: Document, model: InferenceModel) -> Owner:
    """Return the owner: ``former`` is a deleted model of this name, whose objects are being collected."""
    controller = _controller(live)
    if controller.get("uid") and controller["uid"] == model.uid:
        return "model"
    is_former = controller.get("kind") == KIND and controller.get("name") == model.name
    return "former" if is_former else "stranger"


def owned(documents: Iterable[Document | None], model: InferenceModel) -> Iterator[Document]:
    """Keep the model's own objects."""
    return (live for live in documents if live is not None and owner_of(live, model) == "model")


def is_pod_of(pod: Document, model: InferenceModel) -> bool:
    """Whether a ReplicaSet of the model's Deployment made the pod; its label alone proves nothing."""
    controller, labels = _controller(pod), pod["metadata"].get("labels", {})
    expected = f"{model.name}-{labels.get('pod-template-hash')}"
    return controller.get("kind") == "ReplicaSet" and controller.get("name") == expected


def name_taken(live: Document, model: InferenceModel) -> BlockedChild:
    """Describe an object that is in the way."""
    kind, name = str(live["kind"]), str(live["metadata"]["name"])
    controller = _controller(live)
    owner = f"{controller.get('kind')} {controller.get('name')}" if controller else "none"
    message = (
        f"{kind} {name} of namespace {model.namespace} exists and is not this model's (owner: {owner}); "
        f"it stays as it is. Delete or rename it, or give the model another name."
    )
    return BlockedChild(kind, name, "NameTaken", message)


def _controller(live: Document) -> Document:
    references = live["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), {})
