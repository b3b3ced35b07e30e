"""``wisp up`` as its user meets it: the real command and gateway over fake runtimes, from wake to Ctrl-C."""

import json
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
from hollow_checkpoint import LLAMA_8B, write_model
from running_up import PATIENCE_S, manifest, refusal, up


def test_a_request_wakes_the_model_and_silence_sends_it_back_to_zero(tmp_path):
    with up(tmp_path, manifest(scaling={"idleAfter": "4s"}, fake={"ready_after_s": 0.3})) as running:
        assert running.state()["state"] == "Asleep"
        assert [model["id"] for model in running.get("/v1/models")["data"]] == ["tiny"]
        assert not any("fake_runtime" in line for line in running.processes())
        status, body = running.ask()
        assert (status, json.loads(body)["choices"][0]["message"]["content"]) == (200, "word0 word1 word2 ")
        assert running.state()["state"] == "Ready"
        running.until(running.is_in("Asleep"))
        running.until(lambda: not any("fake_runtime" in line for line in running.processes()))
        assert running.ask(stream=True)[0] == 200  # and again


def test_a_first_start_that_fails_says_why_and_is_tried_again(tmp_path):
    with up(tmp_path, manifest(fake={"crash_once": "/tmp/crashed"})) as running:
        status, body = running.ask()
        assert status == 503
        assert "first run fails" in json.loads(body)["error"]["message"]
        running.until(running.is_in("Ready"))
        assert running.ask()[0] == 200


def test_kill_9_within_a_stream_gives_a_clean_error_and_serves_the_queue_after_the_restart(tmp_path):
    scaling = {"idleAfter": "10m", "targetConcurrency": 1}
    with up(tmp_path, manifest(scaling=scaling, fake={"tokens": 60, "token_s": 0.1})) as running:
        answers = {}
        first = threading.Thread(target=lambda: answers.update(first=running.ask(stream=True)))
        second = threading.Thread(target=lambda: answers.update(second=running.ask(stream=True)))
        first.start()
        running.until(lambda: running.state()["running"] == 1)
        second.start()
        running.until(lambda: running.state()["waiting"] == 1)
        time.sleep(0.5)  # well within the first stream
        os.kill(running.pid_of_pod(), signal.SIGKILL)
        first.join(PATIENCE_S)
        second.join(PATIENCE_S)
        last_event = answers["first"][1].strip().splitlines()[-1]
        assert "word0" in answers["first"][1]
        assert json.loads(last_event.removeprefix("data: "))["error"]["code"] == "upstream_failed"
        assert answers["second"][0] == 200
        assert answers["second"][1].strip().endswith("[DONE]")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_the_end_leaves_nothing_behind(tmp_path, number):
    with up(tmp_path, manifest(fake={"orphan": "/tmp/orphan"})) as running:
        assert running.ask()[0] == 200
        lines = " ".join(running.processes())
        assert all(part in lines for part in ("fake_runtime", "wisp-gateway", "sleep 600"))
        code = running.end(number)
        assert code == (-9 if number == signal.SIGKILL else 0)
        running.until(lambda: running.processes() == [])
        running.until(lambda: not is_taken(int(running.url.rpartition(":")[2])))
        if number != signal.SIGKILL:
            assert list(running.temporary.iterdir()) == []
    if number == signal.SIGKILL:  # nobody was left to clean up: the next run does
        left = list(running.temporary.iterdir())
        with up(tmp_path, manifest()) as again:
            assert len(left) == 1
            assert left[0] not in again.temporary.iterdir()


def is_taken(port):
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return listener.connect_ex(("127.0.0.1", port)) == 0


def test_a_stream_that_runs_may_finish_after_ctrl_c(tmp_path):
    with up(tmp_path, manifest(fake={"tokens": 40, "token_s": 0.1})) as running:
        answers = []
        asking = threading.Thread(target=lambda: answers.append(running.ask(stream=True)))
        asking.start()
        running.until(lambda: running.state()["running"] == 1)
        assert running.end() == 0
        asking.join(PATIENCE_S)
        assert answers[0][1].strip().endswith("[DONE]")


def test_models_of_one_name_in_two_namespaces_are_two_models(tmp_path):
    documents = [manifest(namespace="a", fake={"tokens": 1}), manifest(namespace="b", fake={"tokens": 2})]
    with up(tmp_path, *documents) as running:
        answers = [json.loads(running.ask(path=f"/{space}/tiny/v1")[1]) for space in "ab"]
        assert [a["choices"][0]["message"]["content"] for a in answers] == ["word0 ", "word0 word1 "]
        assert running.pid_of_pod("a/tiny") != running.pid_of_pod("b/tiny")


def test_a_changed_manifest_is_followed_and_a_broken_one_is_not(tmp_path):
    with up(tmp_path, manifest(fake={"tokens": 1})) as running:
        assert running.ask()[0] == 200
        pid = running.pid_of_pod()
        running.write([manifest(fake={"tokens": 2}), manifest("other")])
        running.until(lambda: len(running.get("/v1/models")["data"]) == 2)
        running.until(lambda: "word1" in running.ask()[1])  # replaced, never unanswered
        assert running.pid_of_pod() != pid
        running.write([manifest(gpu={"cuont": 0})])
        running.until(lambda: "spec.gpu.cuont" in running.log.read_text())
        assert len(running.get("/v1/models")["data"]) == 2


def test_a_model_that_is_ready_may_be_renamed(tmp_path):
    with up(tmp_path, manifest()) as running:
        assert running.ask()[0] == 200
        running.write([manifest("other")])
        running.until(lambda: [m["id"] for m in running.get("/v1/models")["data"]] == ["other"])
        assert running.ask("other")[0] == 200
        assert running.process.poll() is None, running.log.read_text()


def test_a_pod_that_dies_is_logged_once_with_the_path_of_its_log(tmp_path):
    with up(tmp_path, manifest()) as running:
        assert running.ask()[0] == 200
        os.kill(running.pid_of_pod(), signal.SIGKILL)
        died = re.compile(r"pod tiny-\S+ died \(signal 9\); starting again; log: (\S+) \(removed when (.*)\)")
        running.until(lambda: died.search(running.log.read_text()))
        running.until(running.is_in("Ready"))
        (log, advice), *again = died.findall(running.log.read_text())
        assert Path(log).exists()
        assert ("--state-dir" in advice, again) == (True, [])


def test_a_gateway_that_dies_is_started_again(tmp_path):
    with up(tmp_path, manifest()) as running:
        assert running.ask()[0] == 200
        gateway = next(p for p in Path("/proc").glob("[0-9]*") if is_gateway(p, running.mark))
        os.kill(int(gateway.name), signal.SIGKILL)
        time.sleep(0.2)
        running.until(lambda: answers(running))
        assert running.ask()[0] == 200


def is_gateway(process, mark):
    try:
        command = (process / "cmdline").read_bytes()
        return (
            mark.encode() in (process / "environ").read_bytes()
            and b"subreaper" not in command
            and b"wisp-gateway" in command
        )
    except OSError:
        return False


def answers(running):
    try:
        return running.get("/state")
    except OSError:
        return None


def test_a_model_that_cannot_fit_is_never_started_and_its_callers_get_the_reason(tmp_path):
    uri = f"file://{huge_context(tmp_path / 'model')}"
    with up(tmp_path, manifest(uri=uri, runtime={"maxContext": 16_000_000})) as running:
        running.until(running.is_in("Failed"))
        status, body = running.ask()
        assert status == 503
        assert "this machine has" in json.loads(body)["error"]["message"]
        assert running.state()["reason"] == "DoesNotFit"
        assert not any("fake_runtime" in line for line in running.processes())


@pytest.mark.parametrize(
    ("broken", "reason", "said"),
    [
        (lambda folder: folder.rename(folder.with_name("away")), "ModelNotFound", "is not there"),
        (lambda folder: (folder / "config.json").write_text("{"), "WeightsUnreadable", "is not JSON"),
        (
            lambda folder: (folder / "config.json").write_text('{"architectures": ["NobodysModel"]}'),
            "ModelUnsupported",
            "NobodysModel",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "WeightsUnreadable", "no safetensors file"),
    ],
)
def test_a_folder_that_cannot_be_served_is_reported_at_the_start(tmp_path, broken, reason, said):
    folder = huge_context(tmp_path / "model")
    broken(folder)
    with up(tmp_path, manifest(uri=f"file://{folder}")) as running:
        failed = f"WARNING default/tiny: Failed ({reason}) "
        running.until(lambda: failed in running.log.read_text())  # before the first request
        assert said in running.log.read_text()
        running.until(lambda: running.state()["reason"] == reason)  # the gateway reads it a little later
        assert running.ask()[0] == 503


def test_a_folder_that_appears_later_is_found(tmp_path):
    with up(tmp_path, manifest(uri=f"file://{tmp_path / 'model'}")) as running:
        running.until(running.is_in("Failed"))
        huge_context(tmp_path / "model")
        running.until(
            lambda: running.state()["state"] != "Failed" or running.state()["reason"] == "DoesNotFit"
        )
        assert running.state()["reason"] != "ModelNotFound"


def huge_context(folder):
    """A one-layer model whose KV cache outgrows any machine; its weights are a hole in a file."""
    folder.mkdir()
    sizes = {"intermediate_size": 64, "num_hidden_layers": 1, "num_key_value_heads": 32, "vocab_size": 64}
    longer = {"max_position_embeddings": 16_000_000, "rope_theta": 10000.0, "tie_word_embeddings": True}
    return write_model(folder, LLAMA_8B | sizes | longer)


@pytest.mark.parametrize(
    ("document", "code", "said"),
    [
        (manifest(gpu={"cuont": 0}), 2, "model.yaml:1: spec.gpu.cuont: "),
        ("kind: [", 2, "not valid YAML"),
        (manifest(uri="pvc://claim/model"), 1, "exists only on a cluster"),
        (manifest(access={"apiKeySecretRef": {"name": "keys"}}), 1, "--api-keys FILE"),
    ],
)
def test_models_that_cannot_be_served_are_refused_before_anything_starts(tmp_path, document, code, said):
    found, stderr = refusal(tmp_path, document, "--port", "0")
    assert (found, said in stderr, "Traceback" in stderr) == (code, True, False), stderr


@pytest.mark.parametrize("content", [b"", b"# none yet\nname:\n", b"\xff\xfe\x00"])
def test_a_file_without_a_readable_key_is_refused_for_a_model_that_wants_one(tmp_path, content):
    keys = tmp_path / "keys"
    keys.write_bytes(content)
    document = manifest(access={"apiKeySecretRef": {"name": "keys"}})
    code, stderr = refusal(tmp_path, document, "--port", "0", "--api-keys", str(keys))
    assert (code, "holds no API key that can be read" in " ".join(stderr.split())) == (1, True), stderr


def test_a_port_in_use_is_one_sentence_with_the_remedy(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, stderr = refusal(tmp_path, manifest(), "--port", str(port))
    assert code == 1
    assert f"port {port} of 127.0.0.1 is in use by " in stderr
    assert f"(pid {os.getpid()}). Stop that, or choose another with --port {port + 1}." in stderr


def test_two_runs_do_not_share_a_state_dir(tmp_path):
    with up(tmp_path, manifest(), arguments=("--state-dir", str(tmp_path / "state"))):
        code, stderr = refusal(tmp_path, manifest(), "--port", "0", "--state-dir", str(tmp_path / "state"))
        assert code == 1
        assert "in use by another wisp up" in stderr
    assert (tmp_path / "state" / "gateway.log").exists()  # a chosen folder is kept
