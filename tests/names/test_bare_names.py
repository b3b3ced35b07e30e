"""Holders of bare names: a table of what models ask for over time, and which of them a client gets."""

from __future__ import annotations

import pytest

from wisp_gateway.discovery.snapshot import Model
from wisp_gateway.metrics import Metrics
from wisp_gateway.routing import registry
from wisp_names import bare_names
from wisp_names.bare_names import RESERVED_S, BareNames, Claim, is_qualified


def asks(key, *names, created=1, granted=(), refused=(), leaving=()):
    asked = frozenset(names or ("llama",)) | frozenset(leaving)
    return Claim(key, created, asked, frozenset(granted), frozenset(refused), frozenset(leaving))


PROD = asks("prod/llama", created=5)
AGAIN = asks("prod/llama", created=99)  # deleted and created again
BESIDE = asks("prod/other", created=9)
OLDER = asks("tenant-b/x", created=2)
NEWER = asks("tenant-b/x", created=7)
REFUSED = asks("tenant-b/x", created=2, refused=("llama",))
GRANTED = asks("tenant-b/x", created=7, granted=("llama",))
RENAMED = asks("prod/llama", "new", created=5, granted=("llama",), leaving=("llama",))
SECOND = asks("tenant-b/y", created=8, granted=("llama",))


@pytest.mark.parametrize(
    ("steps", "holder"),
    [
        ([(0, [PROD])], "prod/llama"),
        ([(0, [PROD, NEWER])], "prod/llama"),  # the oldest
        ([(0, [OLDER, PROD])], "tenant-b/x"),
        ([(0, [PROD]), (1, [OLDER, PROD])], "prod/llama"),  # an old model that renames itself takes nothing
        ([(0, [PROD, GRANTED])], "tenant-b/x"),  # the operator's decision outranks age
        ([(0, [SECOND, GRANTED])], "tenant-b/x"),  # granted twice, which no operator does: the older
        ([(0, [REFUSED]), (1, [REFUSED, AGAIN])], "prod/llama"),
        ([(0, [PROD, NEWER]), (1, [NEWER])], None),  # a deleted model's name is kept for its namespace
        ([(0, [PROD, NEWER]), (1, [NEWER]), (2, [NEWER, AGAIN])], "prod/llama"),
        ([(0, [PROD, NEWER]), (1, [NEWER]), (2, [NEWER, BESIDE])], "prod/other"),
        ([(0, [PROD, NEWER]), (1, [NEWER]), (RESERVED_S, [NEWER])], None),
        ([(0, [PROD, NEWER]), (1, [NEWER]), (1 + RESERVED_S, [NEWER])], "tenant-b/x"),
        ([(0, [PROD]), (1, []), (2, [NEWER])], None),  # nor may it be taken anew meanwhile
        ([(0, [PROD]), (1, []), (1 + RESERVED_S, []), (2 + RESERVED_S, [NEWER])], "tenant-b/x"),
        ([(0, [PROD]), (1, [asks("prod/llama", "llama-2")]), (2, [NEWER])], None),  # renamed, not deleted
        ([(0, [PROD]), (1, [RENAMED])], "prod/llama"),  # pods of it still have the name
        ([(0, [RENAMED])], "prod/llama"),  # so decided before this process began
        ([(0, [PROD]), (1, [RENAMED, OLDER])], "prod/llama"),
        ([(0, [PROD]), (1, [RENAMED, BESIDE])], "prod/other"),  # two models of a namespace change places
        ([(0, [REFUSED])], None),  # refused before this process began: it waits the full time from now
        ([(0, [REFUSED]), (RESERVED_S, [REFUSED])], "tenant-b/x"),
        ([(0, [PROD]), (1, [GRANTED])], "tenant-b/x"),  # the operator has waited already
    ],
)
def test_one_model_holds_a_bare_name(steps, holder):
    names = BareNames()
    for now_s, claims in steps:
        names.update(claims, now_s)
    assert names.holder("llama") == holder


@pytest.mark.parametrize(
    ("name", "is_key"),
    [
        ("prod/llama", True),
        ("openai/gpt-oss-20b", True),
        ("Qwen/Qwen3-0.6B", False),
        ("microsoft/phi-3.5", False),  # no model of Kubernetes has a dot in its name
        ("llama", False),
        ("a/b/c", False),
    ],
)
def test_a_name_that_could_be_a_models_key_is_no_bare_name(name, is_key):
    names = BareNames()
    names.update([asks("tenant-b/x", name, granted=(name,))], 0)
    assert is_qualified(name) == is_key
    assert names.holder(name) == (None if is_key else "tenant-b/x")


def test_names_that_nobody_asks_for_any_more_are_forgotten():
    names = BareNames()
    names.update([asks("a/m", str(number)) for number in range(100)], 0)
    names.update([], 1)
    names.update([], 2 + RESERVED_S)
    assert names._holdings == {}


def test_one_changed_model_of_thousands_costs_no_look_at_the_others(monkeypatch):
    """A tenant that changes its model without end must not keep the gateway busy with everybody's."""
    models = {f"ns/m{number}": Model("ns", f"m{number}", f"m{number}", "Asleep") for number in range(2000)}
    registry_of_all = registry.ModelRegistry(Metrics(), lambda state: None)
    registry_of_all.update(models)
    claimed = []
    claim_of = registry._claim
    monkeypatch.setattr(registry, "_claim", lambda model: claimed.append(model.key) or claim_of(model))
    changed = Model("ns", "m7", "seven", "Asleep")
    registry_of_all.update({**models, "ns/m7": changed})
    assert claimed == ["ns/m7"]
    assert registry_of_all.find("seven").model is changed


def test_names_that_come_and_go_without_number_cost_the_decisions_of_others_nothing(monkeypatch):
    names = BareNames()
    for number in range(3000):
        names.apply({f"churn/m{number}": Claim(f"churn/m{number}", 1.0, frozenset({f"m{number}"}))}, 1.0)
        names.apply({f"churn/m{number}": None}, 2.0)
    decided = []

    def decide(name, *rest):
        decided.append(name)
        return original(name, *rest)

    original = bare_names._decide
    monkeypatch.setattr(bare_names, "_decide", decide)
    names.apply({"prod/llama": Claim("prod/llama", 1.0, frozenset({"llama"}))}, 3.0)
    assert decided == ["llama"]
    names.apply({"b/x": Claim("b/x", 1.0, frozenset({"m7"}))}, 4.0)
    assert names.holder("m7") is None  # reserved
    names.apply({}, 2.0 + bare_names.RESERVED_S)
    assert names.holder("m7") == "b/x"
    decided.clear()
    names.apply({}, 3.0 + bare_names.RESERVED_S)
    assert decided == []  # and forgotten
