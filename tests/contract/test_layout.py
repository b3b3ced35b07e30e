"""Layout rules that no linter checks: folders, names and sizes."""

import ast
import re
import subprocess
import tomllib
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DISTRIBUTION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
PACKAGES = (
    *("operator/wisp_operator", "operator/wisp_gateway", "operator/wisp_names"),
    *("runtime/wisp_plan", "runtime/wisp_http", "runtime/wisp_runtime"),
)
TOP_LEVEL = {
    *("pyproject.toml", "operator", "runtime", "kernels", "charts", "crds", "tests", "Dockerfile"),
    *("README.md", "SECURITY.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "docs"),
    *(".ci", ".github", ".gitignore", ".dockerignore", ".clang-format"),
}
TEST_FOLDERS = {
    *("contract", "plan", "http", "names", "operator", "gateway", "runtime", "emulator"),
    *("gpu", "cluster", "bench", "attacks", "browser", "clients", "distribution"),
}
MAX_FILE_LINES, MAX_TEST_FILE_LINES, MAX_FUNCTION_LINES = 300, 400, 50
MAX_FOLDER_FILES = 15
CODE = ("*.py", "*.cu", "*.cuh", "*.h", "*.cpp")
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}


def tracked(*patterns: str) -> list[Path]:
    command = ["git", "ls-files", "--", *patterns]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).exists()]


def is_test(path: Path) -> bool:
    return path.relative_to(ROOT).parts[0] == "tests"


def test_the_top_level_holds_only_named_folders():
    assert {path.relative_to(ROOT).parts[0] for path in tracked()} <= TOP_LEVEL


def test_operator_never_shadows_the_standard_library():
    assert not (ROOT / "operator/__init__.py").exists(), (
        "operator/__init__.py breaks `import operator` everywhere"
    )


def test_tests_are_folders_of_modules_not_packages():
    assert not tracked("tests/**/__init__.py", "tests/__init__.py")
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in tracked("tests/*/**")}
    assert folders <= TEST_FOLDERS


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed_and_documented(package):
    assert (ROOT / package / "py.typed").exists()
    assert ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text()))


def test_no_module_has_a_vague_name():
    versioned = re.compile(r"_v\d+$|[a-z]{3,}\d+$")  # kernel6, new_v2; s3 is a name
    # A family's file is named after its models, a method's after its numbers: qwen3, mxfp4.
    names = {path.stem for path in tracked("*.py") if path.parent.name not in ("families", "quantization")}
    assert {name for name in names if name in VAGUE_NAMES or versioned.search(name)} == set()


def test_files_stay_short_enough_to_read():
    too_long = {}
    for path in tracked("*.py"):
        lines = path.read_text().count("\n")
        if lines > (MAX_TEST_FILE_LINES if is_test(path) else MAX_FILE_LINES):
            too_long[str(path.relative_to(ROOT))] = lines
    assert too_long == {}, "a file this long usually holds two things: find their names"


def test_folders_hold_at_most_15_code_files():
    counts = Counter(path.parent for path in tracked(*CODE) if path.name != "__init__.py")
    too_full = {str(folder.relative_to(ROOT)): n for folder, n in counts.items() if n > MAX_FOLDER_FILES}
    assert too_full == {}, "a folder this full usually holds two packages: find their names"


def imports_of(path: Path, module: str, modules: set[str]) -> set[str]:
    """Return our modules that a file names in its imports, under ``TYPE_CHECKING`` and in functions too."""
    named = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            named |= {part if part in modules else node.module for part in parts}
    return (named & modules) - {module}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_modules_import_each_other_in_a_circle(package):
    root = ROOT / package
    paths = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts): path for path in root.rglob("*.py")
    }
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    imports = {name: imports_of(path, name, set(paths)) for name, path in paths.items()}
    while ends := {
        name
        for name, needed in imports.items()
        if not needed & imports.keys() or not any(name in others for others in imports.values())
    }:
        imports = {name: needed for name, needed in imports.items() if name not in ends}
    assert sorted(imports) == [], "a circle is among these: what both sides need moves below them"


def test_functions_stay_short_enough_to_hold_in_mind():
    too_long = []
    for path in (p for p in tracked("*.py") if not is_test(p)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                doc = node.body[0] if ast.get_docstring(node) else None
                lines = node.end_lineno - node.lineno + 1 - (doc.end_lineno - doc.lineno + 1 if doc else 0)
                if lines > MAX_FUNCTION_LINES:
                    too_long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {lines} lines")
    assert too_long == []


def test_the_environment_is_read_in_config_alone():
    readers = {
        str(path.relative_to(ROOT))
        for path in tracked("operator/*.py", "runtime/*.py")
        if re.search(r"os\.(environ|getenv)", path.read_text()) and path.name != "config.py"
    }
    assert readers == set()


def test_nothing_unfinished_ships():
    words = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")
    found = [
        str(p.relative_to(ROOT))
        for p in tracked("operator/*.py", "runtime/*.py")
        if words.search(p.read_text())
    ]
    assert found == []


def test_no_file_has_the_marks_of_a_conflict_nor_does_a_patch_add_them():
    mark = re.compile(rb"^\+?(<{7}|>{7}) ", re.MULTILINE)
    found = [str(path.relative_to(ROOT)) for path in tracked() if mark.search(path.read_bytes())]
    assert found == []


def needed_by(name: str) -> set[str]:
    """Return the dependencies of an installed package; every extra of ours counts, none of others."""
    try:
        requirements = [Requirement(text) for text in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:
        return set()  # for another platform, or of an extra that is not installed (cuda)
    required = (
        r
        for r in requirements
        if name == DISTRIBUTION or r.marker is None or r.marker.evaluate({"extra": ""})
    )
    return {canonicalize_name(requirement.name) for requirement in required}


def test_no_dependency_pulls_in_torch():
    seen: set[str] = set()
    queue = {DISTRIBUTION}
    while queue:
        seen |= queue
        queue = set().union(*map(needed_by, queue)) - seen
    assert {"numpy", "kopf", "tokenizers"} <= seen
    assert seen & {"torch", "triton", "transformers", "vllm", "xgrammar", "tensorflow", "jax"} == set()


def test_the_makefile_has_few_targets_each_documented():
    text = (ROOT / "Makefile").read_text()
    documented = re.findall(r"^([a-z-]+):.*## ", text, re.M)
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M)
    assert phony is not None
    assert sorted(documented) == sorted(phony[1].split())
    assert len(documented) <= 14


def test_ci_runs_the_commands_of_the_readme():
    readme = (ROOT / "README.md").read_text()
    workflow = re.findall(
        r"- run: (?:sudo \S+ )?(make [a-z-]+)", (ROOT / ".github/workflows/ci.yaml").read_text()
    )
    local = re.findall(r"^(?:RETRY=1 )?(make [a-z-]+)", (ROOT / ".ci/run").read_text(), re.M)
    assert workflow == local
    assert "make test" in local
    for command in ("make demo", "make test"):
        assert command in readme


def test_the_readme_has_at_most_150_lines():
    assert (ROOT / "README.md").read_text().count("\n") <= 150


def test_links_between_our_pages_lead_somewhere():
    link = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
    targets = [(page, target) for page in tracked("*.md") for target in link.findall(page.read_text())]
    assert [
        f"{page.name} -> {target}" for page, target in targets if not (page.parent / target).exists()
    ] == []
