"""Reading YAML files: every problem names its file and line."""

from __future__ import annotations

from textwrap import dedent

import pytest

from wisp_operator.api.manifests import read_files, read_text
from wisp_operator.errors import ManifestError

ONE = """\
apiVersion: wisp.dev/v1alpha1
kind: InferenceModel
metadata: {name: one}
spec:
  model: {uri: "file:///srv/one"}
"""
TWO = ONE.replace("one", "two")


def said(text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        read_text(text, "m.yaml")
    return list(caught.value.lines)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (ONE, ["one"]),
        (f"{ONE}---\n{TWO}", ["one", "two"]),
        (f"---\n---\n# nothing here\n---\n{ONE}---\n", ["one"]),  # empty documents are no error
        ("\ufeff" + ONE, ["one"]),  # an editor's byte order mark
        (ONE.replace("\n", "\r\n"), ["one"]),
    ],
)
def test_a_file_holds_any_number_of_models(text, names):
    assert [manifest.model.name for manifest in read_text(text, "m.yaml")] == names


@pytest.mark.parametrize("kind", ["List", "InferenceModelList"])
def test_a_kubernetes_list_is_read_as_its_items(kind):
    items = "".join("- " + doc.replace("\n", "\n  ").rstrip() + "\n" for doc in (ONE, TWO))
    found = read_text(f"apiVersion: v1\nkind: {kind}\nitems:\n{items}", "m.yaml")
    assert [(manifest.model.name, manifest.line) for manifest in found] == [("one", 4), ("two", 9)]


def test_a_problem_names_the_line_of_its_field():
    text = dedent("""\
        apiVersion: wisp.dev/v1alpha1
        kind: InferenceModel
        metadata:
          name: chat
        spec:
          model:
            uri: hf://Qwen/Qwen3-0.6B
          gpu:
            cuont: 1
          runtime:
            env:
              - name: A
                value: "1"
              - name: B
                value: 2
          scaling:
            min: 4
    """)
    assert said(text) == [
        "m.yaml:9: spec.gpu.cuont: unknown field; did you mean spec.gpu.count?",
        "m.yaml:15: spec.runtime.env[1].value: 2 is not a text (put it in quotes)",
        "m.yaml:17: spec.scaling.min is larger than spec.scaling.max: lower min or raise max.",
    ]


def test_what_is_missing_is_reported_at_the_nearest_line_around_it():
    text = ONE.replace('{uri: "file:///srv/one"}', "{}")
    assert said(text) == ["m.yaml:5: spec.model.uri: is required"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("a: [1,\nb: 2\n", ["m.yaml:3: not valid YAML"]),
        ("a: \x01\n", ["m.yaml:1: not valid YAML"]),
        ("- 1\n", ["m.yaml:1: the document is not a map of fields"]),
        ("", ["m.yaml:1: holds no InferenceModel"]),
        ("# only a comment\n---\n", ["m.yaml:1: holds no InferenceModel"]),
        (ONE.replace("kind: InferenceModel", "kind: Secret"), ["m.yaml:2: kind: 'Secret'"]),
        (
            ONE + '  model: {uri: "file:///srv/2"}\n',
            ["m.yaml:5: spec.model: appears twice, here and in line 6"],
        ),
        (f"{ONE}---\n{TWO.replace('two', 'Two')}", ["m.yaml:9: metadata.name is also"]),
        ("!!python/object/apply:os.system ['true']\n", ["m.yaml:1: not valid YAML"]),
    ],
)
def test_what_cannot_be_read_says_where(text, lines):
    found = said(text)
    assert len(found) == len(lines), found
    assert all(line.startswith(start) for line, start in zip(found, lines, strict=True)), found


def test_aliases_that_stand_for_more_than_memory_holds_are_only_a_problem():
    rows = "\n".join(f"  - &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))
    laughs = f"x:\n  - &a0 [1]\n{rows}\n"
    found = said(f"{ONE}  replicas: *a11\n".replace("apiVersion", f"{laughs}apiVersion", 1))
    assert [line.split(" ")[1] for line in found] == ["x:", "spec.replicas:"]


def test_an_alias_of_itself_is_only_a_problem():
    assert len(said(ONE + "  replicas: &loop [*loop]\n")) == 1


def test_problems_of_all_files_are_reported_at_once(tmp_path):
    (tmp_path / "good.yaml").write_text(ONE)
    (tmp_path / "bad.yaml").write_text(TWO.replace("file:", "ftp:"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    paths = [tmp_path / name for name in ("good.yaml", "bad.yaml", "binary.yaml", "missing.yaml")]
    with pytest.raises(ManifestError) as caught:
        read_files(paths)
    assert [line.removeprefix(f"{tmp_path}/").split(":")[0] for line in caught.value.lines] == [
        *("bad.yaml", "binary.yaml", "missing.yaml")
    ]


@pytest.mark.parametrize("name", ["model.gguf", "folder"])
def test_a_model_in_the_place_of_a_manifest_is_said_to_be_one(tmp_path, name):
    (tmp_path / "model.gguf").write_bytes(b"GGUF\xff\xfe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/config.json").write_text("{}")
    with pytest.raises(ManifestError, match=f"its spec.model.uri is file://{tmp_path / name}"):
        read_files([tmp_path / name])


def test_one_name_in_two_files_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_text(ONE)
    (tmp_path / "b.yaml").write_text(f"{TWO}---\n{ONE}")
    with pytest.raises(
        ManifestError, match=r"b\.yaml:7: metadata\.name: default/one is already in .*a\.yaml:1"
    ):
        read_files([tmp_path / "a.yaml", tmp_path / "b.yaml"])


@pytest.mark.parametrize(
    "text", ["[" * 20_000, "spec: " + "[" * 900 + "]" * 900, "spec: {replicas: " + "9" * 5000 + "}"]
)
def test_a_file_that_no_parser_bears_is_a_manifest_error(text):
    with pytest.raises(ManifestError, match=r"file\.yaml:1"):
        read_text(text, "file.yaml")
