"""The pages that quote the API say what the CRD says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from wisp_operator.api import manifests
from wisp_operator.api.doc_generator import generate

ROOT = Path(__file__).parents[2]
CRD = yaml.safe_load((ROOT / "crds" / "inferencemodels.yaml").read_text())
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
QUOTED = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in PAGES
    for i, block in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.S))
    if "kind: InferenceModel" in block
]


def test_the_reference_is_what_the_crd_gives():
    page = (ROOT / "docs" / "inferencemodel.md").read_text()
    assert page == generate(CRD), (
        "run: python -m wisp_operator.api.doc_generator crds/inferencemodels.yaml docs/inferencemodel.md"
    )


def test_every_field_of_the_spec_is_described():
    bare = [
        line
        for line in generate(CRD).splitlines()
        if line.startswith("| `") and line.rstrip("| ").endswith("|")
    ]
    assert bare == []


@pytest.mark.parametrize("block", QUOTED)
def test_a_manifest_quoted_in_the_docs_is_accepted(block):
    assert manifests.read_text(block, "quoted.yaml")


def test_the_front_page_shows_the_example():
    block = next(re.finditer(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.S))[1]
    assert yaml.safe_load(block) == yaml.safe_load((ROOT / "docs" / "examples" / "smollm2.yaml").read_text())
