"""docs/operations.md explains every reason there is, with the sentence that the code has for it."""

import re
from pathlib import Path

from wisp_operator.core.conditions import REASONS

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
ROWS = re.findall(r"^\| `([A-Z]\w+)` \| (.+?) \| (.+?) \|$", PAGE, re.M)


def test_every_reason_has_its_row_and_its_sentence():
    assert {reason: meaning for reason, meaning, _ in ROWS} == REASONS


def test_every_reason_that_is_bad_says_what_to_do():
    silent = {reason for reason, _, remedy in ROWS if remedy == "–"}
    fine = {"Accepted", "Fits", "InPlace", "Fetched", "Placed", "NoPods", "Serving", "ScaledToZero"}
    assert silent == fine | {"PodsExist", "Scaling", "Settled", "AsExpected", "NameHeld"}
