"""Models of the answers, for the OpenAPI document. Endpoints write their JSON themselves; a test compares.

A field with a default is one that only some answers have.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Answer(BaseModel):
    """Base of the models: an answer has no other fields."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetails(Answer):
    """What is wrong, where, and what to do."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class Error(Answer):
    """An error in OpenAI's shape."""

    error: ErrorDetails


class ModelCard(Answer):
    """A name of the model, and its defaults."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    eos_token_ids: list[int]
    sampling_defaults: dict[str, float]


class Models(Answer):
    """The names of the model."""

    object: Literal["list"]
    data: list[ModelCard]


class PromptDetails(Answer):
    """Details of a prompt's tokens."""

    cached_tokens: int


class CompletionDetails(Answer):
    """Details of an answer's tokens."""

    reasoning_tokens: int


class Usage(Answer):
    """Numbers of tokens; each prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | None = None


class Function(Answer):
    """Function of a call."""

    name: str
    arguments: str


class ToolCall(Answer):
    """A call of a tool; its arguments are JSON text."""

    id: str
    type: Literal["function"]
    function: Function


class AssistantMessage(Answer):
    """The answer to a conversation."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = []


class Alternative(Answer):
    """A token that could have been."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Alternative):
    """A token of the answer, and its alternatives."""

    top_logprobs: list[Alternative]


class ChatLogprobs(Answer):
    """Log-probabilities of an answer's tokens."""

    content: list[TokenLogprob]
    refusal: None


class PromptToken(Answer):
    """A token that is, or could have been, at a place of the prompt."""

    logprob: float
    rank: int | None
    decoded_token: str


class ChatChoice(Answer):
    """One of ``n`` answers."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: str | int | None = None
    token_ids: list[int] = []


class ChatCompletion(Answer):
    """Answers to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] = []
    prompt_logprobs: list[dict[str, PromptToken] | None] = []


class CompletionLogprobs(Answer):
    """Log-probabilities of a completion's tokens."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    """One of ``n`` continuations of a prompt."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: str | int | None = None
    prompt_logprobs: list[dict[str, PromptToken] | None] = []
    token_ids: list[int] = []
    prompt_token_ids: list[int] = []


class Completion(Answer):
    """Continuations of prompts."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class Tokens(Answer):
    """Tokens of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class TokenWithText(Answer):
    """A token with its text, or with its bytes if they are only a part of a character."""

    id: int
    text: str | list[int] = Field(alias="piece")


class TokensWithText(Answer):
    """Tokens of a text, each with its text."""

    count: int
    max_model_len: int
    tokens: list[TokenWithText]
    token_strs: list[str] | None


class DetokenizedText(Answer):
    """Text of tokens, with the names that vLLM and llama.cpp give it."""

    prompt: str
    content: str


class Embedding(Answer):
    """Vector of one input: numbers, or base64 of them as little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class PromptUsage(Answer):
    """Numbers of tokens of prompts that nothing is generated after."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Answer):
    """Vectors of all inputs, in their order."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PromptUsage


class Score(Answer):
    """Score of a pair of texts."""

    index: int
    object: Literal["score"]
    score: float


class Scores(Answer):
    """Scores of all pairs, in their order."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PromptUsage


class RankedText(Answer):
    """Text of a document."""

    text: str


class RankedDocument(Answer):
    """Place of a document in the request, its score and, if wanted, its text."""

    index: int
    relevance_score: float
    document: RankedText | None = None


class Ranking(Answer):
    """Documents, the best first."""

    id: str
    model: str
    usage: PromptUsage
    results: list[RankedDocument]
