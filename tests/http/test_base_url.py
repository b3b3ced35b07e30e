"""Paths that show a wrong base URL, and the base URL that is named instead."""

import pytest

from wisp_http.base_url import MAX_PATH_CHARS, meant_path

ADDRESS = "http://HOST:PORT"


@pytest.mark.parametrize(
    ("path", "meant", "base_url"),
    [
        ("/v1/v1/messages", "/v1/messages", f"leave /v1 out of base_url ({ADDRESS}); Anthropic's SDK adds"),
        ("/v1/v1/messages/count_tokens", "/v1/messages/count_tokens", f"({ADDRESS});"),
        ("/messages", "/v1/messages", f"({ADDRESS});"),
        ("/v1/messages/v1/messages", "/v1/messages", f"({ADDRESS});"),
        ("/v1/v1/chat/completions", "/v1/chat/completions", f"leave one /v1 out of base_url ({ADDRESS}/v1"),
        ("/chat/completions", "/v1/chat/completions", f"set base_url to {ADDRESS}/v1, to which"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions", f"set base_url to {ADDRESS}/v1,"),
        ("/v1/chat/completions/responses", "/v1/responses", f"set base_url to {ADDRESS}/v1,"),
        ("/api/v1/chat/completions", "/v1/chat/completions", f"set base_url to {ADDRESS}/v1,"),
        ("/models", "/v1/models", f"set base_url to {ADDRESS}/v1,"),
        ("/v1/v1/v1/embeddings", "/v1/embeddings", f"leave one /v1 out of base_url ({ADDRESS}/v1"),
        ("/openai/chat/completions", "/v1/chat/completions", f"set base_url to {ADDRESS}/v1,"),
    ],
)
def test_the_remedy_names_the_path_and_the_base_url(path, meant, base_url):
    remedy = meant_path(path).remedy
    assert remedy.startswith(f"The path is {meant}: ")
    assert base_url in remedy


@pytest.mark.parametrize(
    ("path", "meant", "base_url"),
    [
        ("/openai/chat/completions", "/openai/v1/chat/completions", f"{ADDRESS}/openai/v1,"),
        ("/ns/m/v1/v1/messages", "/ns/m/v1/messages", f"({ADDRESS}/ns/m);"),
        ("/ns/m/responses", "/ns/m/v1/responses", f"{ADDRESS}/ns/m/v1,"),
        ("/ns/chat/completions", "/v1/chat/completions", f"{ADDRESS}/v1,"),  # a model has two names
        ("/a/b/c/v1/completions", "/v1/completions", f"{ADDRESS}/v1,"),
    ],
)
def test_a_prefix_of_the_gateway_stays(path, meant, base_url):
    remedy = meant_path(path, has_prefixes=True).remedy
    assert remedy.startswith(f"The path is {meant}: ")
    assert base_url in remedy


@pytest.mark.parametrize(
    "path",
    [
        *("", "/", "/v1", "/v1/messages", "/v1/chat/completions", "/v1/audio/speech", "/v1/messagesx"),
        "/v1" * MAX_PATH_CHARS + "/messages",
    ],
)
def test_other_paths_show_nothing_of_a_base_url(path):
    assert meant_path(path) is None


def test_a_path_behind_a_prefix_is_right_where_there_are_prefixes():
    assert meant_path("/ns/m/v1/messages", has_prefixes=True) is None
