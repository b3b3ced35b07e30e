"""``wisp up`` on a machine with other users: they reach its ports, and neither its pods nor its demand."""

import json
import stat
import urllib.error
import urllib.request

from running_up import manifest, up


def status_of(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def option(running, flag):
    """Value of a flag of the gateway that ``wisp up`` started."""
    gateway = next(line for line in running.processes() if "--demand-url" in line)
    words = gateway.split()
    return words[words.index(flag) + 1]


def test_pods_and_demand_know_the_session_by_its_tokens(tmp_path):
    demand = {"waiting": 9, "running": 0, "arrivals": 9, "idleSeconds": 0.0}
    with up(tmp_path, manifest(), manifest("other")) as running:
        assert running.ask()[0] == 200
        (pod,) = running.state()["endpoints"]
        assert status_of(f"http://{pod['address']}/v1/chat/completions", {"messages": []}) == 401
        report = {"gateway": "stranger", "models": {"default/other": demand}}
        assert status_of(option(running, "--demand-url"), report) == 401
        assert running.state("default/other")["state"] == "Asleep"
        keys = running.temporary / option(running, "--pod-token-keys")
        assert stat.S_IMODE(keys.stat().st_mode) == 0o600
        assert running.ask("other")[0] == 200


def test_a_file_of_keys_that_becomes_empty_a_bad_line_and_an_open_address_are_warned_of(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("chat:sesame\ncarol:sk-carol rpm=thirty\n")
    protected = manifest("closed", access={"apiKeySecretRef": {"name": "keys"}})
    arguments = ("--api-keys", str(keys), "--host", "0.0.0.0")
    with up(tmp_path, protected, manifest("open"), arguments=arguments) as running:
        assert "may use default/open, without a key" in running.log.read_text()
        assert f"{keys}, line 2: 'rpm' must be an integer" in running.log.read_text()
        assert "sk-carol" not in running.log.read_text()
        assert "holds no API key" not in running.log.read_text()
        keys.write_text("")
        running.until(lambda: f"{keys} holds no API key" in running.log.read_text())
        keys.write_text("chat:sesame\n")
        running.until(lambda: f"{keys} holds keys again" in running.log.read_text())
        assert running.log.read_text().count("holds no API key") == 1
