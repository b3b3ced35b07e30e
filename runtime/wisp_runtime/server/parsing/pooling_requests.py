"""Bodies of ``/v1/embeddings``, ``/v1/score`` and ``/v1/rerank``.

Fields are OpenAI's, vLLM's and, of rerank, those that Jina and Cohere have too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from wisp_runtime.server.parsing.completion_request import TokenIds, is_token_list
from wisp_runtime.server.parsing.generation_request import Count
from wisp_runtime.server.parsing.hints import foreign_fields
from wisp_runtime.server.parsing.strict_model import StrictModel

MAX_INPUTS = 2048  # OpenAI's own
MAX_DOCUMENTS = 2048
MAX_INSTRUCTION_CHARS = 4096

Text = Annotated[str, Field(min_length=1)]
Inputs = Annotated[list[Text | TokenIds], Field(min_length=1, max_length=MAX_INPUTS)]
InputField = Text | TokenIds | Inputs
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_DOCUMENTS)]
Truncation = Annotated[int, Field(ge=-1)] | None


class PooledRequest(StrictModel):
    """Fields of all of them.

    Attributes:
        truncate_prompt_tokens: tokens that a prompt is shortened to; -1 is the context.
    """

    model: str
    truncate_prompt_tokens: Truncation = None
    user: str | None = None

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _is_some(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("'truncate_prompt_tokens' is 0, which leaves nothing; -1 is the context.")
        return value


class EmbeddingRequest(PooledRequest):
    """The body of ``POST /v1/embeddings``. ``input`` is one or several, as text or as token ids."""

    foreign = foreign_fields.EMBEDDING

    input: list[str | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Count | None = None
    add_special_tokens: bool | None = None
    normalize: bool | None = None

    @field_validator("input", mode="before", json_schema_input_type=InputField)
    @classmethod
    def _inputs_as_list(cls, value: Any) -> Any:
        """Normalize text, texts, token ids and lists of token ids to one list."""
        inputs = [value] if isinstance(value, str) or is_token_list(value) else value
        if not isinstance(inputs, list) or not inputs:
            raise ValueError("'input' must be a string, a list of strings, token ids, or a list of those.")
        if len(inputs) > MAX_INPUTS:
            raise ValueError(f"'input' has {len(inputs)} texts; at most {MAX_INPUTS} are allowed.")
        for index, text in enumerate(inputs):
            if not (isinstance(text, str) and text) and not is_token_list(text):
                raise ValueError(f"Input {index} must be a text or a list of token ids, and not empty.")
        return inputs


class ScoreRequest(PooledRequest):
    """The body of ``POST /v1/score``: ``text_1`` and ``text_2``, or ``queries`` and ``documents``."""

    text_1: Text | Texts | None = None
    text_2: Text | Texts | None = None
    queries: Text | Texts | None = None
    documents: Text | Texts | None = None
    items: Text | Texts | None = None
    instruction: Annotated[str, Field(max_length=MAX_INSTRUCTION_CHARS)] | None = None

    @model_validator(mode="after")
    def _has_pairs(self) -> ScoreRequest:
        names = [name for name in SCORED if getattr(self, name) is not None]
        if tuple(names) not in (("text_1", "text_2"), ("queries", "documents"), ("queries", "items")):
            raise ValueError(
                "Send 'text_1' and 'text_2', or 'queries' and 'documents' or 'items'; the request has "
                f"{' and '.join(map(repr, names)) or 'none'}."
            )
        first, second = (len(texts) for texts in self.sides())
        if first not in (1, second):
            raise ValueError(
                f"{names[0]!r} has {first} texts and {names[1]!r} {second}; send one, or as many."
            )
        return self

    def names(self) -> tuple[str, str]:
        """Return the fields of both sides."""
        first, second = (name for name in SCORED if getattr(self, name) is not None)
        return first, second

    def sides(self) -> tuple[list[str], list[str]]:
        """Return the texts of both sides; the first has one, or as many as the second."""
        first, second = (getattr(self, name) for name in self.names())
        return [first] if isinstance(first, str) else first, [second] if isinstance(second, str) else second


SCORED = ("text_1", "text_2", "queries", "documents", "items")


class Document(StrictModel):
    """A document as an object; a string is the same."""

    text: Text


class RerankRequest(PooledRequest):
    """The body of ``POST /v1/rerank``."""

    query: Text
    documents: Annotated[list[Text | Document], Field(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Annotated[int, Field(ge=0)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Count | None = None
    instruction: Annotated[str, Field(max_length=MAX_INSTRUCTION_CHARS)] | None = None

    @field_validator("documents", mode="before")
    @classmethod
    def _few_documents(cls, value: Any) -> Any:
        """Refuse before a model of the first is built."""
        if isinstance(value, list) and len(value) > MAX_DOCUMENTS:
            raise ValueError(f"'documents' has {len(value)}; at most {MAX_DOCUMENTS} are allowed.")
        return value

    def names(self) -> tuple[str, str]:
        """Return the fields of the query and of the documents."""
        return "query", "documents"

    def texts(self) -> list[str]:
        """Return the texts of the documents."""
        return [document if isinstance(document, str) else document.text for document in self.documents]
