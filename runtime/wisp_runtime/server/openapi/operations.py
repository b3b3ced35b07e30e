"""Operations of the API, as its OpenAPI document lists them. A new endpoint adds a row to ``OPERATIONS``."""

from __future__ import annotations

from wisp_runtime.server.openapi import answers, anthropic
from wisp_runtime.server.openapi.operation import Operation
from wisp_runtime.server.openapi.response_operations import RESPONSE_OPERATIONS
from wisp_runtime.server.parsing.anthropic.requests import CountTokensRequest, MessagesRequest
from wisp_runtime.server.parsing.chat_request import ChatRequest
from wisp_runtime.server.parsing.completion_request import CompletionRequest
from wisp_runtime.server.parsing.pooling_requests import EmbeddingRequest, RerankRequest, ScoreRequest
from wisp_runtime.server.parsing.token_requests import DetokenizeRequest, TokenizeRequest

OPERATIONS = (
    Operation(
        "get",
        "/v1/models",
        "List the names of the served model; with anthropic-version, as Anthropic's API does.",
        answers.Models | anthropic.AnthropicModels,
        error=answers.Error | anthropic.AnthropicError,
        statuses=(400, 503),
    ),
    Operation(
        "get",
        "/v1/models/{name}",
        "Describe one of its names; with anthropic-version, as Anthropic's API does.",
        answers.ModelCard | anthropic.AnthropicModel,
        error=answers.Error | anthropic.AnthropicError,
        statuses=(404, 503),
    ),
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a conversation.",
        answers.ChatCompletion,
        ChatRequest,
        streams=True,
    ),
    Operation(
        "post", "/v1/completions", "Continue texts.", answers.Completion, CompletionRequest, streams=True
    ),
    Operation("post", "/v1/embeddings", "Return vectors of texts.", answers.Embeddings, EmbeddingRequest),
    Operation(
        "post",
        "/v1/messages",
        "Answer a conversation, by Anthropic's API.",
        anthropic.AnthropicMessage,
        MessagesRequest,
        streams=True,
        error=anthropic.AnthropicError,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation, by Anthropic's API.",
        anthropic.CountedTokens,
        CountTokensRequest,
        error=anthropic.AnthropicError,
    ),
    *(
        Operation("post", path, "Score pairs of texts.", answers.Scores, ScoreRequest)
        for path in ("/v1/score", "/score")
    ),
    *(
        Operation(
            "post", path, "Put documents in the order of their relevance.", answers.Ranking, RerankRequest
        )
        for path in ("/v1/rerank", "/rerank", "/v2/rerank")
    ),
    *(
        Operation(
            "post",
            f"{prefix}/tokenize",
            "Return the tokens of a text or a conversation.",
            answers.Tokens | answers.TokensWithText,
            TokenizeRequest,
        )
        for prefix in ("/v1", "")
    ),
    *(
        Operation(
            "post",
            f"{prefix}/detokenize",
            "Return the text of tokens.",
            answers.DetokenizedText,
            DetokenizeRequest,
        )
        for prefix in ("/v1", "")
    ),
    *RESPONSE_OPERATIONS,
)
