"""Release scripts: reasons to refuse a tree, texts of its notes; workflows take nothing by a moving name."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yaml"))
DIGEST = "sha256:" + "0a" * 32


@pytest.fixture
def scripts(monkeypatch):
    """The modules of ``.ci/release/``, which import each other by name."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci/release"))
    loaded = {name: importlib.import_module(name) for name in ("check", "notes")}
    yield loaded
    for name in (*loaded, "lock"):
        sys.modules.pop(name, None)


@pytest.fixture
def tree(tmp_path):
    """A tree that may be released as 0.1.0."""
    for path in ("charts/wisp", ".github/workflows"):
        (tmp_path / path).mkdir(parents=True)
    for name in ("pyproject.toml", "Dockerfile", "charts/wisp/Chart.yaml"):
        shutil.copy(ROOT / name, tmp_path / name)
    for path in WORKFLOWS:
        shutil.copy(path, tmp_path / ".github/workflows")
    version = re.search(r'(?m)^version = "(.*)"', (ROOT / "pyproject.toml").read_text())[1]
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{version}] - 2026-01-01\n- One thing.\n")
    return tmp_path


def version_tag(tree):
    return "v" + re.search(r'(?m)^version = "(.*)"', (tree / "pyproject.toml").read_text())[1]


def test_a_tree_that_is_pinned_and_agrees_may_be_released(scripts, tree):
    assert scripts["check"].problems(tree, version_tag(tree)) == []


@pytest.mark.parametrize(
    ("file", "pattern", "becomes", "message"),
    [
        ("charts/wisp/Chart.yaml", r"(?m)^version: .*", "version: 9.9.9", "Chart.yaml: version is not"),
        ("charts/wisp/Chart.yaml", r"(?m)^appVersion: .*", "appVersion: 9.9.9", "appVersion is not"),
        ("CHANGELOG.md", r"## \[.*", "## [Unreleased]", "has no section"),
        (
            "CHANGELOG.md",
            r"\n## ",
            "\n## [Unreleased]\n\n### Fixed\n- A bug.\n\n## ",
            "lines under [Unreleased]",
        ),
        ("CHANGELOG.md", r"\n## ", "\n## [Unreleased]\n\n## ", None),
        ("Dockerfile", r"@sha256:\w+", "", "has no digest; run .ci/release/pin_base.sh"),
        ("Dockerfile", r"(?m)^FROM scratch", "FROM debian:trixie", "debian:trixie has no digest"),
        (".github/workflows/release.yaml", r"checkout@\w+", "checkout@v7", "is not pinned by commit"),
    ],
)
def test_each_thing_that_is_not_pinned_or_disagrees_is_named(scripts, tree, file, pattern, becomes, message):
    path = tree / file
    path.write_text(re.sub(pattern, becomes, path.read_text(), count=1))
    problems = scripts["check"].problems(tree, version_tag(tree))
    assert any(message in problem for problem in problems) if message else problems == []


def test_a_tag_of_another_version_is_refused(scripts, tree):
    assert any("they must agree" in problem for problem in scripts["check"].problems(tree, "v9.9.9"))


def test_the_script_exits_with_an_error_that_says_why():
    command = [sys.executable, str(ROOT / ".ci/release/check.py"), "--tag", "v9.9.9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not releasable: the tag is v9.9.9" in done.stderr


def test_every_action_is_pinned_by_commit_with_its_tag_beside_it():
    for path in WORKFLOWS:
        for line in path.read_text().splitlines():
            if "uses:" in line:
                assert re.search(r"uses: [\w/.-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line), (
                    f"{path.name}: {line}"
                )


def test_workflows_may_write_nothing_that_they_do_not_say():
    for path in WORKFLOWS:
        document = yaml.safe_load(path.read_text())
        assert document["permissions"] == {"contents": "read"}, path.name


def test_a_release_is_checked_before_anything_is_built():
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())["jobs"]["files"]["steps"]
    commands = [step.get("run", "") for step in steps]
    checked = next(i for i, command in enumerate(commands) if ".ci/release/check.py --tag" in command)
    assert checked < commands.index("make release")


def test_notes_are_the_changelogs_section(scripts):
    changelog = "# Changelog\n\n## [0.2.0] - 2026-02-02\n- Two.\n\n## [0.1.0] - 2026-01-01\n- One.\n"
    assert scripts["notes"].section(changelog, "0.2.0") == "- Two."
    with pytest.raises(SystemExit, match=r"says nothing of 0\.3\.0"):
        scripts["notes"].section(changelog, "0.3.0")


def test_values_pin_the_images_by_digest(scripts):
    images = [
        f"registry.example.com/team/wisp-operator:0.1.0@{DIGEST}",
        f"registry.example.com/team/wisp-runtime:0.1.0@{DIGEST}",
        f"registry.example.com/team/wisp-runtime:0.1.0-cpu@{DIGEST}",
    ]
    pinned = yaml.safe_load(scripts["notes"].values(images))["images"]
    assert pinned == {
        "registry": "registry.example.com",
        "operator": {"repository": "team/wisp-operator", "digest": DIGEST},
        "runtime": {"repository": "team/wisp-runtime", "digest": DIGEST},
    }
    with pytest.raises(SystemExit, match="not REGISTRY/REPOSITORY"):
        scripts["notes"].values(["registry.example.com/team/wisp-operator:0.1.0"])
