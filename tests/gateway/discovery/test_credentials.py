"""Credentials of the API server: service account, kubeconfig, TCP keep-alive."""

from __future__ import annotations

import json

import pytest

from wisp_gateway.config import ClusterEnvironment
from wisp_gateway.discovery import api_server
from wisp_gateway.discovery.credentials import find
from wisp_gateway.errors import StartError


def environment(tmp_path, **values):
    nowhere = {
        "kubeconfig": None,
        "home_kubeconfig": tmp_path / "no",
        "service_host": "",
        "service_port": "443",
    }
    return ClusterEnvironment(**{**nowhere, **values})


def kubeconfig(tmp_path, **user):
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [
            {"name": "k", "cluster": {"server": "https://h:6443/", "insecure-skip-tls-verify": True}}
        ],
        "users": [{"name": "u", "user": user}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document))
    return path


def test_a_service_accounts_token_is_read_anew_each_time(tmp_path):
    (tmp_path / "token").write_text("one\n")
    credentials = find(environment(tmp_path, service_host="fd00::1"), tmp_path)
    assert (credentials.url, credentials.token()) == ("https://[fd00::1]:443", "one")
    (tmp_path / "token").write_text("two\n")
    assert credentials.token() == "two"


def test_kubeconfig_goes_before_the_service_account(tmp_path):
    (tmp_path / "token").write_text("pod's")
    config = kubeconfig(tmp_path, token="mine")
    credentials = find(environment(tmp_path, service_host="h", kubeconfig=config), tmp_path)
    assert (credentials.url, credentials.token()) == ("https://h:6443", "mine")
    assert find(environment(tmp_path, home_kubeconfig=config), tmp_path / "none").token() == "mine"


def test_a_token_file_beside_the_kubeconfig(tmp_path):
    (tmp_path / "t").write_text("from a file\n")
    credentials = find(environment(tmp_path, kubeconfig=kubeconfig(tmp_path, tokenFile="t")))
    assert credentials.token() == "from a file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no credentials"),
        ("[]", "cannot be used"),
        ("{", "cannot be used"),
        ('{"current-context": "x", "contexts": []}', "contexts: x"),
    ],
)
def test_invalid_credentials_are_one_sentence(tmp_path, text, message):
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StartError, match=message):
        find(environment(tmp_path, kubeconfig=path if text is not None else None), tmp_path)


def test_a_kubeconfig_with_a_credential_plugin_is_refused(tmp_path):
    with pytest.raises(StartError, match="exec"):
        find(environment(tmp_path, kubeconfig=kubeconfig(tmp_path, exec={"command": "aws"})))


def test_the_connection_detects_a_dead_server():
    connection = api_server._socket((2, 1, 6, "", ("127.0.0.1", 1)))
    with connection:
        assert connection.getsockopt(1, 9) == 1  # SOL_SOCKET, SO_KEEPALIVE
        assert connection.getsockopt(6, 18) == 15_000  # IPPROTO_TCP, TCP_USER_TIMEOUT, in ms
