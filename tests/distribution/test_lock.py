"""The lock agrees with pyproject.toml and pins by hash; its checker finds each way to break it."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def module(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci/release" / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


lock = module("lock")
RUN = (ROOT / ".ci/requirements/run.txt").read_text()


def test_the_committed_lock_agrees_with_pyproject():
    assert lock.check() == []


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("inputs ", "inputs 0", "other requirements than pyproject.toml"),
        ("click==", "clack==", "click>=8.1 is not pinned"),
        ("click==8.", "click==7.", "does not allow 7."),
        ("starlette==", "starlette>=", "no pin with a hash"),
        ("--hash=sha256:", "--hash=md5:", "no pin with a hash"),
        ("\nclick==", "\n--index-url https://mirror.example/simple\nclick==", "names an index"),
        ("\nclick==", "\nclick @ https://mirror.example/click.whl\nclick==", "names an index"),
    ],
)
def test_each_way_to_break_a_lock_is_named(was, becomes, message):
    assert was in RUN
    assert any(message in problem for problem in lock.problems_of("run", RUN.replace(was, becomes)))


def test_a_requirement_that_changes_makes_the_lock_stale():
    project = {
        "project": {
            "dependencies": ["click>=8.1"],
            "optional-dependencies": {"operator": ["kopf>=1.38"], "otel": []},
        },
        "dependency-groups": {},
    }
    before = lock.requirements_of(lock.SETS["operator"], project)
    project["project"]["optional-dependencies"]["operator"].append("pyyaml>=6")
    after = lock.requirements_of(lock.SETS["operator"], project)
    assert before == ["click>=8.1", "kopf>=1.38"]
    assert lock.fingerprint(before) != lock.fingerprint(after)


def test_only_images_and_tests_hold_opentelemetry():
    """Images, so that an endpoint is all that traces need; ``test_imports.py`` has no program import it.

    FastAPI would from 0.142 on: 0.2 s and 9 MiB of each pod.
    """
    for name in lock.SETS.keys() - {"dev", "clients", "operator", "runtime-cpu", "runtime-cuda"}:
        pins = lock.pins_of((ROOT / f".ci/requirements/{name}.txt").read_text())
        assert not {package for package in pins if package.startswith("opentelemetry")}, name


def test_an_image_holds_nothing_of_the_tests_and_nothing_that_converts():
    for name in ("operator", "runtime-cpu", "runtime-cuda"):
        pins = lock.pins_of((ROOT / f".ci/requirements/{name}.txt").read_text())
        assert not pins.keys() & {"pytest", "ruff", "mypy", "gguf", "hatchling", "uv", "requests-mock"}, name
