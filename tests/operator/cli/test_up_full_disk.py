"""``wisp up`` on a full disk: /dev/full stands for a file that cannot grow."""

import json

import pytest
from running_up import manifest, refusal, up


@pytest.mark.parametrize("name", ["wisp-up-space", "directory.new"])
def test_it_ends_at_start_with_a_sentence(tmp_path, name):
    state = tmp_path / "state"
    state.mkdir()
    if name == "wisp-up-space":
        (state / name).symlink_to("/dev/full")
    else:
        (state / name).mkdir()
    code, told = refusal(tmp_path, manifest(), "--state-dir", str(state), "--port", "0")
    assert code == 1
    assert "Traceback" not in told
    assert f"wisp up: cannot write in {state}: " in told
    assert "choose another folder with --state-dir" in told


def test_a_folder_that_cannot_be_made_is_a_sentence_too(tmp_path):
    (tmp_path / "file").write_text("")
    code, told = refusal(tmp_path, manifest(), "--state-dir", str(tmp_path / "file/below"), "--port", "0")
    assert (code, "cannot write in" in told, "Traceback" in told) == (1, True, False)


def test_a_model_that_came_while_the_disk_was_full_is_503_and_then_answers(tmp_path):
    with up(tmp_path, manifest(), arguments=("--state-dir", str(tmp_path / "state"))) as running:
        assert running.ask()[0] == 200
        assert running.ask("nobody")[0] == 404
        beside = tmp_path / "state/directory.new"
        beside.symlink_to("/dev/full")
        running.write([manifest(), manifest("late")])
        running.until(lambda: "cannot tell the gateway what changed" in running.log.read_text())
        status, body = running.until(lambda: _unless_404(running.ask("late")))
        assert (status, json.loads(body)["error"]["code"]) == (503, "directory_outdated")
        assert running.ask()[0] == 200
        beside.unlink()
        assert running.until(lambda: running.ask("late")[0] == 200)
        running.until(lambda: running.ask("nobody")[0] == 404)


def _unless_404(answer):
    return answer if answer[0] != 404 else None
