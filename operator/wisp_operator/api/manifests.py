"""Read InferenceModels from YAML files, so that every problem names its file and line.

A file may hold several documents, empty ones and Kubernetes lists. :mod:`.parser` parses each document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from wisp_operator.api.parser import parse
from wisp_operator.api.types import KIND, InferenceModel
from wisp_operator.errors import InvalidModel, ManifestError, Problem

Lines = dict[str, int]


@dataclass(frozen=True, slots=True)
class Manifest:
    """One model, with its file and line."""

    model: InferenceModel
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class _Document:
    """Plain data, with the line (from 1) of every path in it."""

    data: Any
    lines: Lines
    line: int
    problems: tuple[Problem, ...] = ()


def read_files(paths: Iterable[Path | str], *, namespace: str = "default") -> list[Manifest]:
    """Read every model of several files.

    Args:
        paths: YAML files.
        namespace: namespace of models that name none.

    Raises:
        ManifestError: a file cannot be read, holds no model, or holds problems; all of them are listed.
    """
    manifests: list[Manifest] = []
    errors: list[str] = []
    for path in map(str, paths):
        try:
            manifests += read_text(Path(path).read_text(encoding="utf-8"), path, namespace=namespace)
        except ManifestError as error:
            errors += error.lines
        except UnicodeDecodeError:
            errors.append(f"{path}: is not UTF-8 text; an {KIND} is a YAML file{_as_model(path)}")
        except OSError as error:
            errors.append(
                f"{path}: {error.strerror}; name a YAML file with an {KIND} "
                f"(wisp demo --manifest prints one){_as_model(path)}"
            )
    errors += _duplicates(manifests)
    if errors:
        raise ManifestError(errors)
    return manifests


def _as_model(path: str) -> str:
    """Return where a manifest names the model at ``path``; empty if there is none."""
    is_model = path.endswith(".gguf") or Path(path, "config.json").exists()
    return f". This is a model: its spec.model.uri is file://{Path(path).resolve()}" if is_model else ""


def read_text(text: str, file: str, *, namespace: str = "default") -> list[Manifest]:
    """Read every model of one file's text; ``file`` is its name in messages.

    Raises:
        ManifestError: problems of the text, a line each, or no model in it.
    """
    try:
        documents = list(_documents(text))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ManifestError([f"{file}:{line}: not valid YAML: {error.problem or error.context}"]) from error
    except yaml.YAMLError as error:
        raise ManifestError([f"{file}:1: not valid YAML: {str(error).splitlines()[0]}"]) from error
    except RecursionError as error:
        raise ManifestError([f"{file}:1: is nested too deeply for an {KIND}"]) from error
    except ValueError as error:  # a number with thousands of digits
        raise ManifestError([f"{file}:1: not valid YAML: {error}"]) from error
    manifests: list[Manifest] = []
    errors: list[str] = []
    for document in documents:
        try:
            model = _parse(document, namespace)
            manifests.append(Manifest(model, file, document.line))
        except RecursionError:
            errors.append(f"{file}:{document.line}: is nested too deeply for an {KIND}")
        except InvalidModel as error:
            located = [(_line(document, problem.at or problem.path), problem) for problem in error.problems]
            located.sort(key=lambda pair: pair[0])
            errors += [f"{file}:{line}: {problem}" for line, problem in located]
    if not documents:
        errors.append(f"{file}:1: holds no {KIND}; it is empty")
    if errors:
        raise ManifestError(errors)
    return manifests


def _parse(document: _Document, namespace: str) -> InferenceModel:
    """Parse one document, adding the problems that only the YAML text shows."""
    try:
        model = parse(document.data, namespace=namespace)
    except InvalidModel as error:
        raise InvalidModel([*document.problems, *error.problems]) from error
    if document.problems:
        raise InvalidModel(document.problems)
    return model


def _documents(text: str) -> Iterator[_Document]:
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                yield from _split(node, loader)
    finally:
        loader.dispose()


def _split(node: yaml.Node, loader: yaml.SafeLoader) -> Iterator[_Document]:
    """Give one document, or the items of a Kubernetes list; nothing for an empty one."""
    items = _list_items(node)
    for part in [node] if items is None else items:
        lines: Lines = {}
        problems: list[Problem] = []
        _walk(part, "", lines, problems, set())
        data = loader.construct_document(part)
        if data is not None:
            yield _Document(data, lines, part.start_mark.line + 1, tuple(problems))


def _list_items(node: yaml.Node) -> list[yaml.Node] | None:
    """Give the items of a node of kind ``List`` or ``InferenceModelList``, or None for anything else."""
    if not isinstance(node, yaml.MappingNode):
        return None
    fields = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    kind, items = fields.get("kind"), fields.get("items")
    if kind is None or kind.value not in ("List", f"{KIND}List") or not isinstance(items, yaml.SequenceNode):
        return None
    return list(items.value)


def _walk(node: yaml.Node, path: str, lines: Lines, problems: list[Problem], seen: set[int]) -> None:
    """Record the line of every path below ``node``, and every key that appears twice.

    A node that aliases repeat is walked once: aliases may nest without end.
    """
    lines.setdefault(path, node.start_mark.line + 1)
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            _walk(item, f"{path}[{i}]", lines, problems, seen)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = f"{path}.{key.value}" if path else str(key.value)
            if below in lines:
                problems.append(
                    Problem(below, f"appears twice, here and in line {key.start_mark.line + 1}; keep one")
                )
                continue
            lines[below] = key.start_mark.line + 1
            _walk(value, below, lines, problems, seen)


def _line(document: _Document, path: str) -> int:
    """Find the line of ``path``, or of the nearest thing around it."""
    while path and path not in document.lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return document.lines.get(path, document.line)


def _duplicates(manifests: list[Manifest]) -> list[str]:
    """Report models of the same name."""
    first: dict[str, Manifest] = {}
    errors = []
    for manifest in manifests:
        known = first.setdefault(manifest.model.key, manifest)
        if known is not manifest:
            errors.append(
                f"{manifest.file}:{manifest.line}: metadata.name: {manifest.model.key} is already in "
                f"{known.file}:{known.line}; give one of them another name"
            )
    return errors
