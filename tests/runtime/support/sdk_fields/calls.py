"""Calls of the official clients, the fields that their types have, and the tables of their outcomes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import anthropic_rows
import extension_rows
import openai_rows
import responses_rows
from anthropic import Anthropic
from anthropic.types import message_count_tokens_params, message_create_params, model_list_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params
from field_row import REFUSED, Field
from openai import OpenAI
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import (
    input_item_list_params,
    input_token_count_params,
    response_create_params,
    response_retrieve_params,
)

HI = [{"role": "user", "content": "hi"}]
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout", "output_format"}
"""Parameters that are the client's own; ``output_format`` is a class, which it makes ``output_config`` of."""


@dataclass(frozen=True)
class Call:
    """A call of a client.

    Attributes:
        name: its name behind that of the client.
        client: the client's class.
        rows: table of its fields.
        base: arguments that each request has.
        types: the client's own types of the request; none: the parameters of the call alone.
        path: names of arguments that are part of the path, not fields.
        stored: body of the stored response that the call is about; empty: it is about none.
    """

    name: str
    client: type[OpenAI] | type[Anthropic]
    rows: Iterable[Field] = field(repr=False)
    base: Mapping[str, Any] = field(default_factory=dict)
    types: tuple[type, ...] = ()
    path: frozenset[str] = frozenset()
    stored: Mapping[str, Any] = field(default_factory=dict)

    def of(self, client: OpenAI | Anthropic) -> Callable[..., Any]:
        """Return the call of a client."""
        found: Any = client
        for part in self.name.split("."):
            found = getattr(found, part)
        return found

    def fields(self) -> set[str]:
        """Return the fields that the client knows: of its types, and the parameters of the call."""
        known = {name for type_ in self.types for name in type_.__annotations__}
        unbound = self.of(self.client(api_key="unused"))
        return (known | set(inspect.signature(unbound).parameters)) - OF_THE_CLIENT - self.path

    def nested_fields(self) -> set[str]:
        """Return the fields of the objects that a field of theirs is, unless every such object is refused."""
        served = {row.parameter for row in self.rows if row.outcome is not REFUSED}
        return {
            f"{parent}.{name}"
            for type_ in self.types
            for parent, hint in get_type_hints(type_).items()
            if parent in served and (nested := _object(hint))
            for name in nested.__annotations__
        }


def _object(hint: Any) -> type | None:
    """Return the one kind of object that a type is, with null or without."""
    kinds = [hint]
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    return kinds[0] if len(kinds) == 1 and hasattr(kinds[0], "__required_keys__") else None


SEEDED = {"seed": 1}  # others get one each
RESPONSE = {"model": "tiny", "input": "hi"}
ASKED = {"model": "tiny", "messages": HI}
CREATE_MESSAGE = {**ASKED, "max_tokens": 100}
TWO_ITEMS = {**RESPONSE, "input": [*HI, {"role": "user", "content": "ho"}]}
CALLS = (
    Call(
        *("chat.completions.create", OpenAI, (*openai_rows.CHAT, *extension_rows.CHAT)),
        {**ASKED, **SEEDED},
        (chat_params.CompletionCreateParamsNonStreaming, chat_params.CompletionCreateParamsStreaming),
    ),
    Call(
        *("completions.create", OpenAI, (*openai_rows.COMPLETIONS, *extension_rows.COMPLETIONS)),
        {"model": "tiny", "prompt": "hi", **SEEDED},
        (
            completion_create_params.CompletionCreateParamsNonStreaming,
            completion_create_params.CompletionCreateParamsStreaming,
        ),
    ),
    Call(
        *("responses.create", OpenAI, (*responses_rows.CREATE, *extension_rows.RESPONSES)),
        {**RESPONSE, "extra_body": SEEDED},
        (
            response_create_params.ResponseCreateParamsNonStreaming,
            response_create_params.ResponseCreateParamsStreaming,
        ),
    ),
    Call(
        *("responses.input_tokens.count", OpenAI, responses_rows.COUNT, RESPONSE),
        (input_token_count_params.InputTokenCountParams,),
    ),
    Call(
        *("responses.retrieve", OpenAI, responses_rows.RETRIEVE, {}),
        (response_retrieve_params.ResponseRetrieveParamsStreaming,),
        frozenset({"response_id"}),
        {**RESPONSE, "background": True},
    ),
    Call(
        *("responses.input_items.list", OpenAI, responses_rows.ITEMS, {}),
        (input_item_list_params.InputItemListParams,),
        frozenset({"response_id"}),
        TWO_ITEMS,
    ),
    Call(
        "responses.cancel",
        OpenAI,
        (),
        path=frozenset({"response_id"}),
        stored=RESPONSE | {"background": True},
    ),
    Call("responses.delete", OpenAI, (), path=frozenset({"response_id"}), stored=RESPONSE),
    Call(
        *("embeddings.create", OpenAI, (*openai_rows.EMBEDDINGS, *extension_rows.EMBEDDINGS)),
        {"model": "tiny", "input": "hi", "encoding_format": "float"},
        (embedding_create_params.EmbeddingCreateParams,),
    ),
    Call("models.list", OpenAI, ()),
    Call("models.retrieve", OpenAI, (), {"model": "tiny"}, path=frozenset({"model"})),
    Call(
        *("messages.create", Anthropic, (*anthropic_rows.MESSAGES, *extension_rows.MESSAGES), CREATE_MESSAGE),
        (
            message_create_params.MessageCreateParamsNonStreaming,
            message_create_params.MessageCreateParamsStreaming,
        ),
    ),
    Call(
        *("messages.count_tokens", Anthropic, anthropic_rows.COUNT, ASKED),
        (message_count_tokens_params.MessageCountTokensParams,),
    ),
    Call(
        *("beta.messages.create", Anthropic, anthropic_rows.BETA_MESSAGES, CREATE_MESSAGE),
        (
            beta_create_params.MessageCreateParamsNonStreaming,
            beta_create_params.MessageCreateParamsStreaming,
        ),
    ),
    Call(
        *("beta.messages.count_tokens", Anthropic, anthropic_rows.BETA_COUNT, ASKED),
        (beta_count_params.MessageCountTokensParams,),
    ),
    Call("models.list", Anthropic, anthropic_rows.MODELS, {}, (model_list_params.ModelListParams,)),
    Call(
        "models.retrieve", Anthropic, anthropic_rows.MODEL, {"model_id": "tiny"}, path=frozenset({"model_id"})
    ),
)
