"""Schemathesis on our OpenAPI document: no 5xx, answers as described, wrong requests refused.

``CASES=100 make test-clients PYTEST_ARGS=test_schema.py`` tries so many examples of each operation, after all
values at the bounds of its schema; without ``CASES`` there are a few examples.
``tests/bench/clients/schema_cases.py`` tries more than 50,000, and writes the record.
"""

import os
import subprocess
import sys
from pathlib import Path

import httpx

SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
SETTINGS = Path(__file__).with_name("schemathesis.toml")
EXAMPLES = os.environ.get("CASES")
FEW = "5"
# What a schema cannot say is refused though it allows it: two fields that exclude each other, a stored id.
LEFT_OUT = "positive_data_acceptance"


def test_the_document_is_true(scripted, tmp_path):
    command = [
        *(SCHEMATHESIS, "--config-file", SETTINGS, "run", f"{scripted.url}/openapi.json"),
        *("--max-examples", EXAMPLES or FEW, "--no-color", "--suppress-health-check", "all", "--seed", "17"),
        *("--exclude-checks", LEFT_OUT, "--request-timeout", "300"),
        *("--phases", "coverage,fuzzing,stateful" if EXAMPLES else "fuzzing,stateful"),
    ]
    tried = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path)
    print(tried.stdout[-6000:])
    assert tried.returncode == 0
    assert httpx.get(f"{scripted.url}/readyz").status_code == 200
    metrics = httpx.get(f"{scripted.url}/metrics").text
    broken = [line for line in metrics.splitlines() if "responses_total" in line and 'status="5' in line]
    assert broken == []
