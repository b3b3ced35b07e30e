"""Key files and the ``Authorization`` header."""

from __future__ import annotations

import pytest

from wisp_gateway.discovery.key_digests import parse_keys
from wisp_gateway.inbound.auth import bearer


def test_keys_have_names_comments_and_blanks_around_them():
    assert parse_keys("# comment\nalice: sk-a \n\nsk-bare\nbob:sk:with:colons\nempty:\n") == [
        "sk-a",
        "sk-bare",
        "sk:with:colons",
    ]


@pytest.mark.parametrize(
    ("header", "token"),
    [("Bearer k", "k"), ("bearer  k ", "k"), ("Basic k", ""), ("", ""), ("Bearer", "")],
)
def test_the_token_of_an_authorization_header(header, token):
    assert bearer(header) == token
