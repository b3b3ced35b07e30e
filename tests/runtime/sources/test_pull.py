"""``wisp-runtime pull`` and a pod's pull phase, as processes: what they print, how they share and die."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hub_server import Hub

REPO = "acme/tiny"
RUNTIME = Path(sys.executable).with_name("wisp-runtime")
RANGE = 32 << 20
WEIGHTS = os.urandom(1 << 20) * 40  # two ranges
SMALL = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": os.urandom(1 << 20)}


@pytest.fixture
def hub():
    with Hub({REPO: dict(SMALL)}) as running:
        yield running


def environment(hub, home, **more):
    kept = {"PATH": os.environ["PATH"], "HOME": str(home), "HF_ENDPOINT": hub.endpoint}
    return kept | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"} | more


def start(hub, cache_dir, *arguments, **more):
    command = [RUNTIME, "pull", f"hf://{REPO}", "--cache-dir", cache_dir, *arguments]
    return subprocess.Popen(
        command,
        env=environment(hub, cache_dir, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def pull(hub, cache_dir, *arguments, **more):
    process = start(hub, cache_dir, *arguments, **more)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def wait_until(claim, seconds=60):
    until = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_the_folder_is_data_and_the_progress_is_not(hub, tmp_path):
    code, out, err = pull(hub, tmp_path)
    assert code == 0
    assert (Path(out.strip()) / "model.safetensors").read_bytes() == SMALL["model.safetensors"]
    assert "pulling hf://acme/tiny: 1.0 MiB of 1.0 MiB" in err
    code, again, err = pull(hub, tmp_path)
    assert (code, again, err) == (0, out, "")  # nothing to fetch, nothing to say


def test_json_has_the_revision_and_every_sum(hub, tmp_path):
    _, out, _ = pull(hub, tmp_path, "--json")
    facts = json.loads(out)
    assert facts["revision"] == hub.commit(REPO)
    assert set(facts["files"]) == set(SMALL)
    assert facts["bytes"] == sum(map(len, SMALL.values()))
    assert all(digest.startswith("sha256:") for digest in facts["files"].values())


def test_a_folder_is_its_own_answer(hub, tmp_path):
    command = [RUNTIME, "pull", tmp_path, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(hub, tmp_path))
    assert json.loads(done.stdout)["folder"] == str(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--revision", "v9"], 1, "ModelNotFound"),
        (["--frobnicate"], 2, None),
    ],
)
def test_a_failure_is_one_line_an_exit_code_and_a_termination_log(hub, tmp_path, arguments, code, reason):
    log = tmp_path / "termination.json"
    status, out, err = pull(hub, tmp_path, *arguments, "--termination-log", log)
    assert (status, out) == (code, "")
    if reason:
        assert json.loads(log.read_text())["reason"] == reason
        assert err.startswith(f"wisp-runtime: {reason}: hf://acme/tiny has no revision")
    assert "Traceback" not in err


def test_a_pull_that_is_killed_is_gone_on_with(hub, tmp_path):
    hub.repositories[REPO]["model.safetensors"] = WEIGHTS
    hub.bytes_per_s = 24 << 20
    first = start(hub, tmp_path)
    # The second range is 8 MiB and is on the disk long before the first.
    wait_until(lambda: list(tmp_path.glob(f"weights/*/*.partial/model.safetensors.done-{RANGE}")))
    first.kill()
    first.communicate()
    hub.bytes_per_s = None
    hub.sent.clear()
    code, out, err = pull(hub, tmp_path)
    assert code == 0, err
    assert (Path(out.strip()) / "model.safetensors").read_bytes() == WEIGHTS
    assert [(start, count) for name, start, count in hub.sent if name == "model.safetensors"] == [(0, RANGE)]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_pull_that_is_asked_to_stop_says_that_nothing_is_lost(hub, tmp_path, sent):
    hub.bytes_per_s = 200 << 10
    process = start(hub, tmp_path)
    wait_until(lambda: "model.safetensors" in {name for name, _, _ in hub.sent})
    process.send_signal(sent)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "fetched data is kept" in err
    assert "Traceback" not in err


def test_four_pulls_at_once_fetch_once(hub, tmp_path):
    hub.bytes_per_s = 200 << 10  # longer than a busy machine takes to start four
    processes = [start(hub, tmp_path) for _ in range(4)]
    answers = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len({out for out, _ in answers}) == 1
    assert sum(name == "model.safetensors" for name, _, _ in hub.sent) == 1
    waited = [err for _, err in answers if "which fetches hf://acme/tiny" in err]
    assert len(waited) == 3
    named = {each.pid for each in processes if any(f"process {each.pid} on" in err for err in waited)}
    fetcher = next(one.pid for one, (_, err) in zip(processes, answers, strict=True) if err not in waited)
    assert fetcher in named  # a waiter whose turn comes may be named too, for the moment it looks


def test_repair_mends_what_an_ordinary_pull_refuses(hub, tmp_path):
    folder = Path(pull(hub, tmp_path)[1].strip())
    os.truncate(folder / "model.safetensors", 5)
    code, _, err = pull(hub, tmp_path)
    assert code == 1
    assert f"pull --repair hf://acme/tiny --revision {hub.commit(REPO)} --cache-dir {tmp_path}" in err
    assert pull(hub, tmp_path, "--repair")[0] == 0
    assert (folder / "model.safetensors").read_bytes() == SMALL["model.safetensors"]


def test_the_token_of_the_environment_is_used_and_not_printed(hub, tmp_path):
    hub.token = "hf_secret"
    code, _, err = pull(hub, tmp_path)
    assert code == 1
    assert "Set HF_TOKEN" in err
    code, out, err = pull(hub, tmp_path, HF_TOKEN="hf_secret")
    assert code == 0
    assert "hf_secret" not in out + err


def test_a_pod_that_starts_shows_its_pull_with_bytes_and_total(hub, tmp_path):
    hub.bytes_per_s = 200 << 10
    command = [RUNTIME, "serve", f"hf://{REPO}", "--host", "127.0.0.1", "--port", "0"]
    command += ["--cache-dir", tmp_path, "--device", "cpu", "--termination-log", tmp_path / "end.json"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environment(hub, tmp_path), stdout=log, stderr=log)
    try:
        seen, log = [], tmp_path / "log"
        wait_until(lambda: "listening on" in log.read_text())
        port = int(log.read_text().partition("listening on http://127.0.0.1:")[2].split()[0])
        while process.poll() is None and len(seen) < 500:
            seen += [phase for phase in phases(port) if phase["name"] == "pull"]
            time.sleep(0.05)
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    total = sum(map(len, SMALL.values()))
    moving = [phase["bytes"] for phase in seen if phase["totalBytes"] == total and phase["state"] != "done"]
    assert len(set(moving)) > 3
    assert moving == sorted(moving)
    # Its files are empty, which is found out after the pull; the order of the checks is not.
    assert json.loads((tmp_path / "end.json").read_text())["reason"] in (
        "ModelUnsupported",
        "TokenizerUnreadable",
        "WeightsUnreadable",
    )


def phases(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/state", timeout=2) as answer:
            return json.load(answer)["phases"]
    except (urllib.error.URLError, OSError, ValueError):
        return []


def test_a_hub_whose_name_is_unknown_is_reported_as_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://no-such-host.invalid")
    done = subprocess.run(
        [RUNTIME, "pull", "hf://org/name", "--cache-dir", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        "its name could not be resolved, as on a machine that is offline. Check the connection" in done.stderr
    )
