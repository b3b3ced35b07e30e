"""The distribution's name and version, and the command that installs an extra."""

import tomllib
from pathlib import Path

from wisp_plan import distribution

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_name_is_the_distributions():
    assert PROJECT["name"] == distribution.NAME


def test_a_clone_installs_itself():
    assert distribution.install_command("runtime") == "pip install -e '.[runtime]' in a clone"


def test_what_a_gpu_needs_is_installed_as_the_readme_says():
    command, _, place = distribution.install_command("cuda").partition(" in ")
    assert place == "the clone"
    assert command in (ROOT / "README.md").read_text()
    assert (ROOT / command.split()[-1]).exists()


def test_an_installed_wheel_names_the_releases_file(monkeypatch, tmp_path):
    monkeypatch.setattr(distribution, "__file__", str(tmp_path / "site-packages/wisp_plan/distribution.py"))
    monkeypatch.setattr(distribution, "version", lambda: "1.2.3")
    command = distribution.install_command("cuda")
    assert command.startswith("pip install 'wisp_serving-1.2.3-py3-none-any.whl[cuda]'")
