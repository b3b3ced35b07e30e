"""Write ``docs/inferencemodel.md`` from the descriptions in the CRD, and copy the CRD into the chart.

Run it after every change of the API: ``python -m wisp_operator.api.doc_generator crds/inferencemodels.yaml
docs/inferencemodel.md``; ``tests/contract`` fails until it was. The chart's copy is no link, since helm
prints a line for each at every command.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Schema = Mapping[str, Any]
PAGE_COLUMNS = 120
CHART_COPY = "charts/wisp/files/inferencemodels.yaml"
OF_KUBERNETES = ("spec.podTemplate.affinity",)  # sections whose fields every user of Kubernetes knows

INTRODUCTION = """\
# InferenceModel

Generated from [`crds/inferencemodels.yaml`](../crds/inferencemodels.yaml) by
`python -m wisp_operator.api.doc_generator`; edit the descriptions there.
Examples: [`docs/examples/`](examples/).

Durations are one to three whole numbers, each with `ms`, `s`, `m` or `h`: `90s`, `1h30m`. A field that does
not exist is refused with its path, by `wisp` and by `kubectl apply` alike.
"""


def generate(crd: Schema) -> str:
    """Write the page for a CustomResourceDefinition, parsed."""
    names, version = crd["spec"]["names"], crd["spec"]["versions"][0]
    root = version["schema"]["openAPIV3Schema"]
    subject = f"`{crd['spec']['group']}/{version['name']}`, kind `{names['kind']}`"
    lines = [
        INTRODUCTION,
        _wrapped(f"{subject}, short name `{names['shortNames'][0]}`. {root['description']}"),
        "",
    ]
    lines += ["## Spec\n", *_table(root["properties"]["spec"], "spec")]
    lines += ["## Rules\n", "Checked at apply time. Each is the sentence that is printed.\n"]
    lines += [_wrapped(f"- {sentence}") for sentence in _sentences(root)]
    lines += ["\n## Status\n", *_table(root["properties"]["status"], "status")]
    lines += ["## Columns of `kubectl get imodel`\n", *_columns(version["additionalPrinterColumns"])]
    return "\n".join(lines) + "\n"


def _table(schema: Schema, path: str) -> list[str]:
    """One row a field, sections before what is in them."""
    rows = [
        f"| `{name}` | {_type(field)} | {_default(field, is_required)} | {_text(field)} |"
        for name, field, is_required in _fields(schema, path)
    ]
    return ["| field | type | default | what it is |", "|---|---|---|---|", *rows, ""]


def _fields(schema: Schema, path: str) -> Iterator[tuple[str, Schema, bool]]:
    for key, field in schema.get("properties", {}).items():
        name = f"{path}.{key}"
        yield name, field, key in schema.get("required", ())
        if name in OF_KUBERNETES:
            continue
        yield from _fields(field, name)
        yield from _fields(field.get("items", {}), f"{name}[]")


def _type(field: Schema) -> str:
    if "enum" in field:
        return " \\| ".join(f"`{word}`" for word in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return f"{_range(field)} or `auto`" if field["pattern"] == "^auto$" else "cores"
    if field["type"] == "integer" and "minimum" in field:
        return _range(field)
    if field.get("pattern", "").endswith("(ms|s|m|h)){1,3}$"):
        return "duration"
    if field.get("pattern", "").endswith("(Mi|Gi|Ti|M|G|T)$"):
        return "size"
    if field["type"] == "array":
        return f"list of {field['items']['type']}s"
    if "additionalProperties" in field:
        return "map of strings"
    kind = str(field["type"])
    return {"object": "section", "integer": "whole number"}.get(kind, kind)


def _range(field: Schema) -> str:
    return f"{field['minimum']} to {field['maximum']}"


def _default(field: Schema, is_required: bool) -> str:
    if is_required:
        return "required"
    default = field.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _text(field: Schema) -> str:
    example = field.get("example")
    if example is None:
        shown = ""
    else:
        shown = f" Example: `{example if isinstance(example, str) else json.dumps(example)}`."
    return str(field.get("description", "")).replace("|", "\\|") + shown


def _sentences(schema: Schema) -> Iterator[str]:
    yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    for field in schema.get("properties", {}).values():
        yield from _sentences(field)


def _wrapped(text: str) -> str:
    """Wrap a paragraph or a list item at the width of our pages."""
    wrapper = textwrap.TextWrapper(
        PAGE_COLUMNS,
        subsequent_indent="  " if text.startswith("- ") else "",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.fill(text)


def _columns(columns: list[Schema]) -> list[str]:
    rows = [
        f"| {column['name']} | {'`-o wide`' if column.get('priority') else ''} | `{column['jsonPath']}` |"
        for column in columns
    ]
    return ["| column | shown with | from |", "|---|---|---|", *rows]


def main(crd: str, page: str, copy: str = CHART_COPY) -> None:
    """Read the file ``crd`` and write the files ``page`` and ``copy``."""
    source = Path(crd).read_text(encoding="utf-8")
    Path(page).write_text(generate(yaml.safe_load(source)), encoding="utf-8")
    Path(copy).write_text(source, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
