"""Turn the fields that prescribe an answer's format into one grammar, as llguidance reads it.

Nothing is compiled here; :mod:`wisp_runtime.server.structured.checks` checks the grammar.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wisp_runtime.server.answers.tools.format import Channels
from wisp_runtime.server.answers.tools.grammars.lark import LarkRules
from wisp_runtime.server.api.errors import bad_request
from wisp_runtime.server.structured.closed_schema import closed_schema
from wisp_runtime.server.structured.expressions import lark_expression
from wisp_runtime.server.structured.fields import (
    ResponseFormat,
    Schema,
    StructuredFields,
    StructuredOutputs,
    TagStructure,
)

WHITESPACE = r"[ \t\r\n]{1,40}"
"""Space between the tokens of JSON. It is bounded: some models would write spaces up to ``max_tokens``."""
_ANY_TEXT = r"/(.|\n)*/"


@dataclass(frozen=True, slots=True)
class Structure:
    """Format that an answer must have.

    Attributes:
        param: field that prescribes it.
        grammar: the format as llguidance reads it.
    """

    param: str
    grammar: str


def structure_of(request: StructuredFields) -> Structure | None:
    """Return the format that ``request`` prescribes; None where any text will do.

    Raises:
        ApiError: 400; a field is contradictory, or two fields prescribe formats.
    """
    try:
        structures = [
            *_of_response_format(request.response_format),
            *_of_outputs(request),
            *_of_guided(request),
        ]
    except RecursionError as error:  # JSON in a text of JSON
        raise bad_request("A schema of the body is too deep.", code="request_too_complex") from error
    if len(structures) > 1:
        first, second = structures[0].param, structures[1].param
        raise bad_request(
            f"{first!r} and {second!r} both prescribe the answer's format; send one of them.", second
        )
    if request.guided_json is None and request.guided_whitespace_pattern is not None:
        raise bad_request(
            "'guided_whitespace_pattern' is for JSON: send 'guided_json' too.", "guided_whitespace_pattern"
        )
    return structures[0] if structures else None


def _of_response_format(response_format: ResponseFormat | None) -> Iterator[Structure]:
    if response_format is None:
        return
    name, kind = "response_format", response_format.type
    fields = {"json_schema": "json_schema", "object_schema": "json_object"}
    fields |= {"structures": "structural_tag", "triggers": "structural_tag"}
    for field, of_kind in fields.items():
        if getattr(response_format, field) is not None and kind != of_kind:
            alias = "schema" if field == "object_schema" else field
            raise bad_request(
                f"'{name}.{alias}' is for the type {of_kind!r}, not {kind!r}.", f"{name}.{alias}"
            )
    if kind == "json_object":
        schema = (
            {"type": "object"} if response_format.object_schema is None else response_format.object_schema
        )
        yield Structure(f"{name}.schema" if response_format.object_schema else name, _json_grammar(schema))
    elif kind == "json_schema":
        if response_format.json_schema is None:
            raise bad_request(f"Missing required parameter: '{name}.json_schema'.", f"{name}.json_schema")
        wanted = response_format.json_schema.json_schema
        wanted = {"type": "object"} if wanted is None else wanted
        wanted = closed_schema(wanted) if response_format.json_schema.strict else wanted
        yield Structure(f"{name}.json_schema.schema", _json_grammar(wanted))
    elif kind == "structural_tag":
        structures, triggers = response_format.structures or [], response_format.triggers or []
        yield Structure(name, _tag_grammar(structures, triggers, name))


def _of_outputs(request: StructuredFields) -> Iterator[Structure]:
    outputs, name = request.structured_outputs, "structured_outputs"
    if outputs is None:
        return
    whitespace = _whitespace(outputs)
    structures = list(_structures(outputs, name, whitespace))
    if not structures:
        raise bad_request(
            f"{name!r} prescribes no format: send json, regex, choice, grammar, json_object or "
            "structural_tag.",
            name,
        )
    yield from structures


def _structures(outputs: StructuredOutputs, name: str, whitespace: str | None) -> Iterator[Structure]:
    if outputs.json_schema is not None:
        yield Structure(f"{name}.json", _json_grammar(outputs.json_schema, whitespace))
    if outputs.json_object:
        yield Structure(f"{name}.json_object", _json_grammar({"type": "object"}, whitespace))
    if outputs.structural_tag is not None:
        tag, param = outputs.structural_tag, f"{name}.structural_tag"
        yield Structure(param, _tag_grammar(tag.structures, tag.triggers, param))
    yield from _of_texts(name + ".", outputs.regex, outputs.choice, outputs.grammar)


def _of_guided(request: StructuredFields) -> Iterator[Structure]:
    if request.guided_json is not None:
        pattern = request.guided_whitespace_pattern
        whitespace = WHITESPACE if pattern is None else pattern
        yield Structure("guided_json", _json_grammar(request.guided_json, whitespace))
    yield from _of_texts("guided_", request.guided_regex, request.guided_choice, request.guided_grammar)


def _of_texts(
    prefix: str, regex: str | None, choice: Sequence[str] | None, grammar: str | None
) -> Iterator[Structure]:
    if regex is not None:
        yield Structure(f"{prefix}regex", lark_grammar(f"start: /{lark_expression(regex)}/"))
    if choice is not None:
        yield Structure(f"{prefix}choice", lark_grammar(f"start: {' | '.join(map(_quoted, choice))}"))
    if grammar is not None:
        yield Structure(f"{prefix}grammar", lark_grammar(_as_lark(grammar, f"{prefix}grammar")))


def lark_grammar(text: str) -> str:
    """Return a grammar in llguidance's Lark."""
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _quoted(text: str) -> str:
    """Return a text as a literal of Lark."""
    return json.dumps(text, ensure_ascii=False)


def either(*grammars: str) -> str:
    """Return the grammar of texts that follow one of ``grammars``, as they are made here."""
    firsts, others = list[Any](), list[Any]()
    for number, text in enumerate(grammars):
        first, *rest = json.loads(text)["grammars"]
        firsts.append({**first, "name": f"part_{number}"})
        others += rest
    names = " | ".join(f"@{first['name']}" for first in firsts)
    start = {"name": "either", "lark_grammar": f"start: {names}"}
    return json.dumps({"grammars": [start, *firsts, *others]})


def behind(channels: Channels, special: Mapping[str, int], grammar: str) -> str:
    """Return the grammar of answers whose text, behind the headers and thinking of channels, follows another.

    Args:
        channels: markup of the model's messages.
        special: ids of those of its markers that grammars see as one token.
        grammar: grammar of the text, a single one as made here.
    """
    rules = LarkRules(special)
    head = rules.source(f"{channels.before_text(rules)} @text")
    (text,) = json.loads(grammar)["grammars"]
    return json.dumps({"grammars": [{"lark_grammar": head}, {**text, "name": "text"}]})


def _json_grammar(schema: Schema, whitespace: str | None = WHITESPACE) -> str:
    """Return the grammar of JSON by a schema.

    Args:
        schema: the schema.
        whitespace: regular expression of the space between tokens; None allows none.
    """
    options = {"whitespace_flexible": False} if whitespace is None else {"whitespace_pattern": whitespace}
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return json.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": options}}]})


def _whitespace(outputs: StructuredOutputs) -> str | None:
    if outputs.disable_any_whitespace:
        return None
    return WHITESPACE if outputs.whitespace_pattern is None else outputs.whitespace_pattern


def _as_lark(grammar: str, param: str) -> str:
    """Return a grammar in Lark; llama.cpp's GBNF is translated."""
    if "::=" not in grammar:
        return grammar
    from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

    try:
        return gbnf_to_lark(grammar)
    except (GbnfToLarkError, ValueError, RecursionError) as error:
        message = f"{param!r} is no GBNF grammar: {error}."
        raise bad_request(message, param, "invalid_grammar") from error


def _tag_grammar(structures: Sequence[TagStructure], triggers: Sequence[str], param: str) -> str:
    """Return the grammar of free text with regions of JSON; a trigger begins one of its regions."""
    if not structures or not triggers:
        raise bad_request(f"{param!r} needs 'structures' and 'triggers'.", param)
    rules = [f"start: (free_text_until_tag)* REST\nREST: {_ANY_TEXT}"]
    names = []
    for number, structure in enumerate(structures):
        trigger = next((trigger for trigger in triggers if structure.begin.startswith(trigger)), None)
        if trigger is None:
            raise bad_request(f"{param!r} has no trigger for {structure.begin!r}.", param)
        options: dict[str, Any] = {"x-guidance": {"whitespace_pattern": WHITESPACE}}
        schema = structure.json_schema
        schema = schema if isinstance(schema, dict) else {} if schema else {"not": {}}
        rest = [_quoted(structure.begin[len(trigger) :])] if structure.begin != trigger else []
        rest += [f"%json {json.dumps(schema | options)}"]
        rest += [_quoted(structure.end)] if structure.end else []
        rules.append(f"begin_{number}[lazy]: {_ANY_TEXT} {_quoted(trigger)}")
        rules.append(f"tag_{number}: begin_{number} {' '.join(rest)}")
        names.append(f"tag_{number}")
    rules.append(f"free_text_until_tag: {' | '.join(names)}")
    return lark_grammar("%llguidance {}\n" + "\n".join(rules))
