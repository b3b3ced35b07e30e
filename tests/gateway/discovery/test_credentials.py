"""How the gateway finds the API server and proves who asks."""

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
    found = find(environment(tmp_path, service_host="fd00::1"), tmp_path)
    assert (found.url, found.token()) == ("https://[fd00::1]:443", "one")
    (tmp_path / "token").write_text("two\n")
    assert found.token() == "two"


def test_kubeconfig_goes_before_the_service_account(tmp_path):
    (tmp_path / "token").write_text("pod's")
    config = kubeconfig(tmp_path, token="mine")
    found = find(environment(tmp_path, service_host="h", kubeconfig=config), tmp_path)
    assert (found.url, found.token()) == ("https://h:6443", "mine")
    assert find(environment(tmp_path, home_kubeconfig=config), tmp_path / "none").token() == "mine"


def test_a_token_file_beside_the_kubeconfig(tmp_path):
    (tmp_path / "t").write_text("from a file\n")
    found = find(environment(tmp_path, kubeconfig=kubeconfig(tmp_path, tokenFile="t")))
    assert found.token() == "from a file"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no credentials"),
        ("[]", "cannot be used"),
        ("{", "cannot be used"),
        ('{"current-context": "x", "contexts": []}', "contexts: x"),
    ],
)
def test_credentials_that_cannot_be_are_one_sentence(tmp_path, text, said):
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(StartError, match=said):
        find(environment(tmp_path, kubeconfig=path if text is not None else None), tmp_path)


def test_a_kubeconfig_that_runs_a_program_is_refused(tmp_path):
    with pytest.raises(StartError, match="exec"):
        find(environment(tmp_path, kubeconfig=kubeconfig(tmp_path, exec={"command": "aws"})))


def test_the_connection_notices_a_server_that_fell_silent():
    made = api_server._socket((2, 1, 6, "", ("127.0.0.1", 1)))
    with made:
        assert made.getsockopt(1, 9) == 1  # SOL_SOCKET, SO_KEEPALIVE
        assert made.getsockopt(6, 18) == 15_000  # IPPROTO_TCP, TCP_USER_TIMEOUT, in ms
