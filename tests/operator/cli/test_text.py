"""Texts of the command line: rows, bars, durations, wrapped words, error messages, the live table."""

import io
import os
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from wisp_operator.cli.commands import up
from wisp_operator.cli.commands.chat import progress_line, unknown_model_message
from wisp_operator.cli.commands.get import columns
from wisp_operator.cli.display import ledger, rows, table
from wisp_operator.cli.display.wrap import Wrapper
from wisp_operator.cli.errors import exit_code_of, message_of, wrapped
from wisp_operator.errors import ManifestError, WispError
from wisp_plan.errors import UnknownCard


def model(name="tiny", namespace="default", state="Asleep", **fields):
    """One model of a gateway's ``/state``, as docs/contracts.md has it."""
    return {
        "namespace": namespace, "name": name, "servedName": name, "state": state,
        "reason": "R", "message": "M.",
        "phase": None, "progress": None, "waiting": 0, "running": 0, "arrivals": 0, "idleSeconds": None,
        "tokensPerSecond": 0.0, "lastColdStartSeconds": None, "url": f"http://gw/{namespace}/{name}/v1",
        "endpoints": [], **fields,
    }  # fmt: skip


def row(**fields):
    return rows.read({"models": [model(**fields)]})[0]


POD = {"id": "p", "address": "a:1", "ready": True, "draining": False, "running": 0}


@pytest.mark.parametrize(
    ("fields", "idle_after_s", "words"),
    [
        ({"state": "Asleep"}, 60, "wakes on the first request"),
        ({"state": "Asleep", "lastColdStartSeconds": 2.14}, 60, "last start took 2.1 s"),
        ({"state": "Waking"}, 60, "starting"),
        ({"state": "Waking", "phase": "schedule"}, 60, "scheduling"),  # the words of the page
        ({"state": "Waking", "phase": "import"}, 60, "starting the runtime"),
        ({"state": "Waking", "phase": "firstToken"}, 60, "warming up"),
        ({"state": "Waking", "phase": "weights", "progress": 0.5}, 60, "loading weights ━━━━━━────── 50%"),
        ({"state": "Waking", "phase": "unheard-of"}, 60, "starting"),  # of a runtime newer than us
        ({"state": "Ready", "idleSeconds": 10.0, "endpoints": [POD]}, 600, "sleeps in 9:50"),
        ({"state": "Ready", "idleSeconds": 700.0, "endpoints": [POD]}, 600, "sleeps in 0 s"),
        ({"state": "Ready", "idleSeconds": 10.0, "endpoints": [POD]}, None, "ready"),  # never sleeps
        ({"state": "Ready", "running": 1, "idleSeconds": 0.0, "endpoints": [POD]}, 600, "serving"),
        ({"state": "Ready", "running": 1, "endpoints": [POD, POD]}, 600, "2 pods, serving"),
        ({"state": "Failed", "message": "needs 17.1 GiB"}, 60, "needs 17.1 GiB"),
        ({"state": "Failed", "message": "", "reason": "CrashBackOff"}, 60, "CrashBackOff"),
    ],
)
def test_each_state_is_described_in_a_few_words(fields, idle_after_s, words):
    assert rows.detail(row(**fields), idle_after_s) == words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.9, "59 s"), (60, "1:00"), (581, "9:41"), (3600, "1 h 00"), (7500, "2 h 05")],
)
def test_a_length_of_time_is_as_short_as_it_can_be_read(seconds, text):
    assert rows.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(-1, "────"), (0, "────"), (0.5, "━━──"), (1, "━━━━"), (7, "━━━━")],
)
def test_a_progress_bar_stays_within_itself(share, text):
    assert rows.bar(share, cells=4) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "    "),
        (0.0001, "▏   "),  # something never looks like nothing
        (0.125, "▌   "),
        (0.5, "██  "),
        (1, "████"),
        (3, "████"),  # what does not fit does not leave the table
    ],
)
def test_a_ledger_bar_is_precise_to_an_eighth_of_a_cell(share, text):
    assert ledger.bar(share, cells=4) == text


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["one two three four five six"], "one two three four\nfive six"),
        (["one two three fo", "ur five"], "one two three four\nfive"),
        (["aaaa bbbb cccc dd", "ddd", "dd e"], "aaaa bbbb cccc\nddddddd e"),  # the word moves as a whole
        (["a" * 45], "a" * 20 + "\n" + "a" * 20 + "\n" + "a" * 5),
        (["one\ntwo three four five six"], "one\ntwo three four five\nsix"),
        (["日本語日本語日本語日本語"], "日本語日本語日本語日\n本語"),  # two columns each
        ([""], ""),
    ],
)
def test_words_are_not_cut_at_the_edge_of_the_terminal(texts, shown):
    wrapper = Wrapper(20)
    assert screen("".join(wrapper.feed(text) for text in texts)) == shown


def screen(text):
    """Text on a terminal after backspaces, without spaces at the ends of lines."""
    kept = []
    for character in text:
        if character == "\b":
            kept.pop()
        else:
            kept.append(character)
    return "\n".join(line.rstrip() for line in "".join(kept).split("\n"))


def test_get_prints_columns_as_kubectl_does_and_wide_adds_where_and_why():
    models = [
        model("b", state="Ready", endpoints=[POD], idleSeconds=5.0, lastColdStartSeconds=2.04),
        model("a"),
    ]
    narrow = columns(rows.read({"models": models}), wide=False).splitlines()
    assert narrow[0].split() == [
        *("NAMESPACE", "NAME", "REPLICAS", "STATE", "REASON"),
        *("WAITING", "RUNNING", "TOK/S", "COLD", "IDLE"),
    ]
    # in the order of the manifests, which is the gateway's
    assert narrow[1].split() == ["default", "b", "1/1", "Ready", "R", "0", "0", "-", "2.0s", "5s"]
    assert narrow[2].split() == ["default", "a", "0/0", "Asleep", "R", "0", "0", "-", "-", "-"]
    wide = columns(rows.read({"models": models}), wide=True).splitlines()
    assert wide[2].endswith("http://gw/default/a/v1   M.")


def test_a_pod_that_drains_is_not_counted():
    assert row(endpoints=[POD, {**POD, "draining": True}]).pods == 1


@pytest.mark.parametrize(
    ("fields", "name", "line"),
    [
        (
            {"state": "Waking", "phase": "pull", "progress": 0.25},
            "tiny",
            "waking tiny: fetching weights ━━━───",
        ),
        ({"state": "Asleep"}, "default/tiny", "waking tiny: starting"),
        ({"state": "Ready", "waiting": 3}, "tiny", "queued, 3 waiting"),
        ({"state": "Ready", "running": 1}, "tiny", "the first token is being computed"),
        ({"state": "Ready"}, "another", ""),
    ],
)
def test_chat_names_the_reason_of_a_wait(fields, name, line):
    assert progress_line([row(**fields)], name).startswith(line)
    assert bool(progress_line([row(**fields)], name)) == bool(line)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ManifestError(["model.yaml:3: spec.gpu.cuont: unknown"]), 2),
        (WispError("port 8080 is in use"), 1),
        (UnknownCard("no GPU 'l44'"), 1),
        (KeyboardInterrupt(), 130),
        (ExceptionGroup("tasks", [WispError("a"), WispError("b")]), 1),
        (ExceptionGroup("tasks", [WispError("a"), RuntimeError("a bug of ours")]), None),
        (RuntimeError("a bug of ours"), None),  # shows its traceback
    ],
)
def test_an_error_on_purpose_is_a_sentence_and_an_exit_code(error, code):
    assert exit_code_of(error) == code
    assert "Traceback" not in message_of(error)


def test_one_problem_is_one_line_and_several_have_one_each():
    assert message_of(ManifestError(["a.yaml:1: x"])) == "a.yaml:1: x"
    assert message_of(ManifestError(["a.yaml:1: x", "a.yaml:2: y"])) == "\na.yaml:1: x\na.yaml:2: y"


def test_a_sentence_for_a_terminal_is_broken_between_words_and_nowhere_else(monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((20, 24)))
    assert wrapped("no gateway answers at http://127.0.0.1:8080/a-b") == (
        "no gateway answers\nat\nhttp://127.0.0.1:8080/a-b"
    )
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    assert wrapped("x" * 10 + " " + "y" * 20) == "x" * 10 + " " + "y" * 20


def test_an_unknown_model_is_reported_with_the_nearest_one():
    rows_here = rows.read({"models": [model("smollm2"), model("qwen3")]})
    assert unknown_model_message("smollm", rows_here).startswith(
        "no model 'smollm' here; did you mean 'smollm2'? wisp get"
    )
    assert unknown_model_message("gpt", rows_here).startswith("no model 'gpt' here. wisp get lists")


def rendered(*models, width=100, events=("an event",), **options):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table.render(rows.read({"models": models}), "http://127.0.0.1:9", {}, events, **options))
    return console.file.getvalue()


def test_the_live_table_shows_every_model_and_what_to_type_next():
    text = rendered(
        model("a"), model("b", state="Failed", message="needs 17.1 GiB, the L4 has 14.8 GiB free")
    )
    assert "○ asleep" in text
    assert "needs 17.1 GiB, the L4" in text
    assert "wisp chat a --url http://127.0.0.1:9" in text
    assert '"model":"a"' in text
    assert "an event" in text


def test_lines_to_paste_for_a_model_with_keys_take_the_key_that_they_ask_for():
    text = rendered(model("a"), width=80, key_files={"default/a": Path("keys.txt")})
    lines = [line.strip() for line in text.splitlines()]
    assert "key   export WISP_API_KEY=…    with a key of keys.txt" in lines
    start = lines.index("call  curl http://127.0.0.1:9/v1/chat/completions -d '")
    command = " ".join(lines[start : start + 3]).removeprefix("call")
    assert shlex.split(command)[-2:] == ["-H", "x-api-key: $WISP_API_KEY"]
    assert "$WISP_API_KEY" not in rendered(model("b"), key_files={"default/a": Path("keys.txt")})


@pytest.mark.parametrize(("api_keys", "guarded"), [(Path("k"), {"default/b": Path("k")}), (None, {})])
def test_a_file_of_keys_is_for_models_that_ask_for_one(api_keys, guarded):
    def served(name, **access):
        return SimpleNamespace(key=f"default/{name}", spec=SimpleNamespace(access=SimpleNamespace(**access)))

    models = [served("a", api_key_secret_ref=None), served("b", api_key_secret_ref="keys")]
    session = SimpleNamespace(options=SimpleNamespace(api_keys=api_keys), models=models)
    assert up.key_files(session) == guarded


def test_the_live_table_names_namespaces_only_where_there_are_several():
    assert "default/a" not in rendered(model("a"), model("b"))
    assert "x/a" in rendered(model("a", "x"), model("a", "y"))


def test_the_live_table_proposes_nothing_that_cannot_answer():
    assert "wisp chat" not in rendered(model("a", state="Failed"))
    assert "wisp chat" not in rendered(model("a"), notice="stopping")


def test_a_failure_and_the_last_events_are_shown_in_full():
    message = "needs 17.1 GiB, the L4 has 14.8 GiB free; fits with maxContext 8192, or with quantization fp8"
    event = f"12:00:00 {'x' * 90} did you mean count?"
    text = rendered(model("a", state="Failed", message=message), width=60, events=[event])
    assert message in " ".join(text.split())
    assert text.rstrip().endswith("did you mean count?")
