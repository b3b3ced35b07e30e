"""Key files and the ``Authorization`` header."""

from __future__ import annotations

import pytest

from wisp_gateway.discovery.key_digests import Key, digest, parse_keys, priority_of
from wisp_gateway.inbound.auth import token_of


def test_keys_have_names_comments_and_blanks_around_them():
    keys = parse_keys("# comment\nalice: sk-a \n\nsk-bare\nbob:sk:with:colons\nempty:\n").keys
    names = {"sk-a": "alice", "sk-bare": "", "sk:with:colons": "bob"}
    assert keys == {digest(key): Key(name) for key, name in names.items()}


@pytest.mark.parametrize(
    ("name", "priority"),
    [
        ("alice", "normal"),
        ("alice.high", "high"),
        ("batch.jobs.low ", "low"),
        ("alice.normal", "normal"),
        ("alice.urgent", "normal"),
        ("high", "normal"),  # a name, without an ending
        ("", "normal"),
    ],
)
def test_the_ending_of_a_keys_name_is_its_priority(name, priority):
    assert priority_of(name) == priority
    assert parse_keys(f"{name}:sk-1").keys == {digest("sk-1"): Key(name.strip(), priority)}


@pytest.mark.parametrize(
    ("authorization", "api_key", "token"),
    [
        ("Bearer k", "", "k"),
        ("bearer  k ", "", "k"),
        ("Basic k", "", ""),
        ("", "", ""),
        ("Bearer", "", ""),
        ("", " k ", "k"),  # Anthropic's header
        ("Bearer k", "other", "k"),
        ("Basic k", "k2", "k2"),
    ],
)
def test_the_key_of_a_request_is_a_bearer_token_or_anthropics_header(authorization, api_key, token):
    assert token_of(authorization, api_key) == token
