"""Address of a model's Service from before Services were headless: kept while the model runs, then released.

Pure. The API server lets no Service give its address up, so one that has an address is deleted and made
again, in a moment without pods, when nobody can notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wisp_operator.desired.service import NO_ADDRESS


def has_surplus_address(desired: Mapping[str, Any], live: Mapping[str, Any] | None) -> bool:
    """Whether ``live`` has an address of the cluster's range that ``desired`` does without."""
    if live is None or desired["kind"] != "Service":
        return False
    return live.get("spec", {}).get("clusterIP", NO_ADDRESS) not in (NO_ADDRESS, "")


def with_address(desired: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the manifest of a Service, keeping the address and the port of ``live``."""
    spec = {key: value for key, value in desired["spec"].items() if key != "clusterIP"}
    ports = live.get("spec", {}).get("ports") or desired["spec"]["ports"]
    spec["ports"] = [{**spec["ports"][0], "port": ports[0]["port"]}]
    return {**desired, "spec": spec}
