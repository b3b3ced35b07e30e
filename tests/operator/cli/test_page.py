"""The page of ``wisp up``: its address, ``--open``, and models woken and stopped from there."""

import json
import urllib.request
import webbrowser

import pytest
from running_up import manifest, up

from wisp_operator.cli.commands.up import NoBrowser, browser_opener


def post(running, path):
    request = urllib.request.Request(f"{running.url}{path}", b"", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.status, json.load(answer)


@pytest.mark.parametrize("opens", [True, False])
def test_a_browser_opens_only_if_it_is_asked_for(tmp_path, monkeypatch, opens):
    program, opened = tmp_path / "browser", tmp_path / "opened"
    program.write_text(f'#!/bin/sh\nprintf %s "$1" > {opened}.new && mv {opened}.new {opened}\n')
    program.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{program} %s")
    with up(tmp_path, manifest(), arguments=["--open"] if opens else []) as running:
        running.until(lambda: f"open {running.url} in a browser" in running.log.read_text())
        if opens:
            running.until(opened.exists)
            assert opened.read_text() == running.url
        else:
            wake_and_stop(running)
            assert not opened.exists()


def wake_and_stop(running):
    assert running.state()["canStop"]
    assert post(running, "/state/wake/default/tiny")[0] == 202
    running.until(running.is_in("Ready"))
    assert post(running, "/state/stop/default/tiny")[0] == 202
    running.until(lambda: running.is_in("Asleep")() and not running.state()["endpoints"])
    assert post(running, "/state/wake/default/tiny")[0] == 202
    running.until(running.is_in("Ready"))


def test_without_a_browser_open_says_what_to_do(monkeypatch):
    def none_there(using=None):
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "get", none_there)
    with pytest.raises(NoBrowser, match="Leave --open out"):
        browser_opener()
