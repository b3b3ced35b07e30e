"""Answers of noise to random JSON schemas; tests/bench/constrained/random_schemas.py has ten thousand."""

import json
import os
import sys
from pathlib import Path

from jsonschema import Draft202012Validator

sys.path.insert(0, str(Path(__file__).parents[4] / "tests/bench/constrained"))
from random_schemas import check, fault_of
from schema_maker import SchemaMaker

COUNT = int(os.environ.get("WISP_TEST_SCHEMAS", "100"))


def test_every_answer_to_a_random_schema_parses_and_validates(tmp_path):
    counts, faults = check(COUNT, 20_000, tmp_path)
    assert not faults, json.dumps(faults[0], indent=1)
    assert counts["answered"] == COUNT
    assert counts["ended by stop"] > 0.9 * COUNT
    assert counts["refused"] < 0.1 * COUNT


def test_random_schemas_are_valid_and_differ_by_seed():
    made = [SchemaMaker(seed).document() for seed in range(300)]
    for schema in made:
        Draft202012Validator.check_schema(schema)
    assert len({json.dumps(schema) for schema in made}) > 250
    assert SchemaMaker(7).document() == made[7]
    text = json.dumps(made)
    for keyword in ("anyOf", "oneOf", "allOf", "$ref", "pattern", "format", "enum", "const", "prefixItems"):
        assert f'"{keyword}": ' in text


def test_an_answer_that_does_not_validate_is_a_fault():
    assert fault_of('{"a": 1}', {"type": "object"}) == ""
    assert fault_of("[]", {"type": "object"}).startswith("[] is not of type 'object'")
    assert fault_of("{", {}).startswith("no JSON")
