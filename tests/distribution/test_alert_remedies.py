"""Remedies of the chart's alerts: each field of the resource that they name is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCHEMA = yaml.safe_load((ROOT / "crds/inferencemodels.yaml").read_text())["spec"]["versions"][0]["schema"]
SPEC = SCHEMA["openAPIV3Schema"]["properties"]["spec"]["properties"]
FIELD = re.compile(rf"(?<![\w.])(?:spec\.)?({'|'.join(SPEC)})\.(\w+)")


@pytest.mark.parametrize("file", ["charts/wisp/templates/alerts-prometheusrule.yaml", "docs/metrics.md"])
def test_a_remedy_names_fields_that_the_resource_has(file):
    named = FIELD.findall((ROOT / file).read_text())
    assert ("scaling", "max") in named
    assert [f"{part}.{field}" for part, field in named if field not in SPEC[part].get("properties", {})] == []
