"""Answers of an installed release: pods answer by token, models by key; the Secrets that both come from."""

import pytest
from kube import apply, get, kubectl, model, status, until
from namespaces import make_namespace, put_weights
from release import NAME, SYSTEM, answer, ask, chat, install, pods_of, settled
from tiny import write_tiny

NAMESPACE = "wisp-tokens"
CHAT, KEY = "/v1/chat/completions", "sk-sesame"


@pytest.fixture(scope="module")
def models(clients, tmp_path_factory):
    """``open``, and ``keyed``, whose Secret the gateway may not read yet."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny(folder)
    make_namespace(NAMESPACE)
    put_weights(NAMESPACE, tiny=folder)
    door = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "door"}, "stringData": {"me": KEY}}
    tiny = {"model": {"uri": "pvc://weights/tiny"}, "replicas": 1}
    access = {"apiKeySecretRef": {"name": "door"}}
    apply(door, model("open", **tiny), model("keyed", **tiny, access=access), namespace=NAMESPACE)
    until(
        lambda: all(status(name, NAMESPACE).get("state") == "Ready" for name in ("open", "keyed")), seconds=90
    )
    yield NAMESPACE
    kubectl("delete", "imodel", "--all", "-n", NAMESPACE)


@pytest.mark.parametrize("place", ["pod", "Service"])
def test_a_models_own_address_answers_nobody_without_a_token(models, place):
    """From a gateway's pod, which a NetworkPolicy lets through where one is enforced."""
    pods = [pod for pod in get("pods", namespace=models) if pod["metadata"]["name"].startswith("open-")]
    at = (
        f"http://open.{models}.svc:8000"
        if place == "Service"
        else f"http://{pods[0]['status']['podIP']}:8000"
    )
    there = {"at": at, "pod": (SYSTEM, pods_of("gateway")[0]["metadata"]["name"])}
    for path, body in ((CHAT, chat("open")), ("/v1/models", None), ("/state", None)):
        code, found = answer(path, body, **there)
        assert (code, found["error"]["code"]) == (401, "gateway_only")
    for path in ("/livez", "/readyz", "/metrics"):
        assert ask(path, **there)[0] == 200
    assert answer(CHAT, chat(f"{models}/open"))[0] == 200


def test_the_gateway_shows_its_state_to_nobody_and_its_metrics_on_a_port_of_their_own(models):
    assert [ask(path)[0] for path in ("/state", "/metrics")] == [401, 401]
    pod = pods_of("gateway")[0]["metadata"]["name"]
    port = f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:8081/proxy"
    assert f'model="{models}/open"' in kubectl("get", "--raw", f"{port}/metrics")
    assert kubectl("get", "--raw", f"{port}/state", check=False).returncode != 0


def test_a_models_keys_open_it_once_the_chart_lists_their_secret(models):
    def keyed(key):
        """What each gateway answers; the Service would choose one of them."""
        addresses = [f"http://{pod['status']['podIP']}:8080" for pod in pods_of("gateway")]
        answers = [answer(CHAT, chat(f"{models}/keyed"), key=key, at=address) for address in addresses]
        return {(code, found.get("error", {}).get("code")) for code, found in answers}

    for component in ("operator", "gateway"):
        settled(component)  # an earlier test's upgrade may still replace pods
    until(lambda: keyed(KEY) == {(503, "keys_unread")})
    before = get("pods", namespace=SYSTEM)
    install("--set", f"gateway.modelSecrets.{models}={{door}}")
    until(lambda: keyed(KEY) == {(200, None)}, seconds=90)
    assert keyed("sk-other") == keyed("") == {(401, "invalid_api_key")}
    assert uids(get("pods", namespace=SYSTEM)) == uids(before)  # rights alone changed
    install()


def uids(things):
    return {thing["metadata"]["uid"] for thing in things}


def test_an_upgrade_keeps_the_keys_of_tokens_and_with_them_the_pods(models):
    before = get("secret", f"{NAME}-tokens", SYSTEM)["data"], uids(get("pods", namespace=models))
    install("--set", "gateway.logLevel=warning")
    settled("gateway")
    assert answer(CHAT, chat(f"{models}/open"))[0] == 200
    assert (get("secret", f"{NAME}-tokens", SYSTEM)["data"], uids(get("pods", namespace=models))) == before
    install()
    settled("gateway")
