"""Rendering in processes with limits: what fails is a sentence, and the next conversation finds a process."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wisp_runtime.errors import ConfigError
from wisp_runtime.server.http.server import _start_templates
from wisp_runtime.server.text.template_messages import ChatTemplate, TemplateFailed
from wisp_runtime.server.text.template_renderer import PROCESSES, TemplateRenderer

USER = [{"role": "user", "content": "hé <|x|> \x00"}]


def run(source, use):
    """Start a renderer of ``source`` and await ``use`` of it."""

    async def body():
        renderer = await TemplateRenderer.start(ChatTemplate(source, {"bos_token": "<s>"}))
        try:
            return await use(renderer)
        finally:
            await renderer.close()

    return asyncio.run(body())


def test_text_comes_back_as_the_template_wrote_it():
    source = "{{ bos_token }}{{ messages[0].content }}{{ enable_thinking }}"
    text = run(source, lambda renderer: renderer.render(USER, {"enable_thinking": False}))
    assert text == "<s>hé <|x|> \x00False"


def test_long_texts_come_back_complete():
    messages = [{"role": "user", "content": "🙂" * (1 << 20)}]
    assert run("{{ messages[0].content }}", lambda renderer: renderer.render(messages)) == "🙂" * (1 << 20)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% for %}", "no valid Jinja2"),
        ("{% break %}", "no valid Jinja2"),  # Python refuses what Jinja makes of it
        ("{{ 9 ** (9 ** (9 ** 9)) }}", "2 s of processor time|not done after 10 s"),
        ("{{ 'x' * 10**9 }}", "512 MiB of memory"),
    ],
)
def test_a_template_that_cannot_be_compiled_is_refused_at_start(source, says):
    with pytest.raises(TemplateFailed, match=says):
        run(source, lambda renderer: renderer.render(USER))


def test_a_process_that_cannot_start_is_no_fault_of_the_template(monkeypatch):
    monkeypatch.setattr("wisp_runtime.server.text.template_renderer.ENTRY", "wisp_runtime.absent")
    with pytest.raises(ConfigError, match="not at fault"):
        asyncio.run(_start_templates(ChatTemplate("fine", {}), Path("/srv")))


def test_a_process_that_is_killed_from_outside_costs_no_conversation():
    async def kill_and_render(renderer):
        texts = []
        for _ in range(3 * PROCESSES):
            for process in list(renderer._processes):
                os.kill(process._process.pid, signal.SIGKILL)
                break  # one at a time, as the kernel does when memory is short
            texts.append(await renderer.render(USER))
            await asyncio.sleep(0.3)
        return texts

    assert run("fine", kill_and_render) == ["fine"] * 3 * PROCESSES


def test_the_processes_end_with_the_renderer():
    async def pids(renderer):
        await renderer.render(USER)
        return [process._process.pid for process in renderer._processes]

    for pid in run("fine", pids):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_lower_hard_limit_that_the_server_was_started_with_is_kept():
    source = "import sys; from test_template_renderer import USER, run; sys.stdout.write("
    source += "run('fine', lambda renderer: renderer.render(USER)))"
    result = subprocess.run(
        ["sh", "-c", 'ulimit -t 3600 && ulimit -v 400000 && exec "$0" -c "$1"', sys.executable, source],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.stdout, result.returncode) == ("fine", 0), result.stderr


def test_a_template_reaches_no_file_and_no_further_process():
    async def limits(renderer):
        await renderer.render(USER)
        for process in renderer._processes:  # one of them rendered; the others may be starting
            text = Path(f"/proc/{process._process.pid}/limits").read_text()
            if re.search(r"Max address space +\d", text):
                return text
        raise AssertionError("no process has limits")

    lines = {line[:26].strip(): line[26:].split()[0] for line in run("fine", limits).splitlines()}
    assert lines["Max address space"] == str(512 << 20)
    assert (lines["Max file size"], lines["Max processes"]) == ("0", "0")
