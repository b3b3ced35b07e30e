"""``wisp demo``: the real runtime, the real gateway and a real model, from zero to zero."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wisp_operator.cli.commands.demo import MANIFEST

WISP = str(Path(sys.executable).with_name("wisp"))

pytestmark = pytest.mark.model


def test_the_demo_wakes_a_real_model_streams_its_answer_and_shows_it_at_zero_again(smollm2_dir):
    done = subprocess.run([WISP, "demo"], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    states = re.findall(r"[○●] (asleep|ready)", done.stdout)
    assert states == ["asleep", "ready", "asleep"]
    assert "Paris" in done.stdout
    assert re.search(r"\d+\.\d s from zero to the first token: starting the runtime \d", done.stdout)


def test_the_manifest_of_the_demo_is_one_that_fits(smollm2_dir, tmp_path):
    text = subprocess.run(
        [WISP, "demo", "--manifest"], capture_output=True, text=True, timeout=280, check=True
    ).stdout
    (tmp_path / "smollm2.yaml").write_text(text)
    done = subprocess.run(
        [WISP, "fit", str(tmp_path / "smollm2.yaml")], capture_output=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_manifest_of_the_demo_is_the_published_example_with_another_uri(tmp_path):
    published = (Path(__file__).parents[3] / "docs/examples/smollm2.yaml").read_text().splitlines()[1:]
    printed = MANIFEST.format(folder=tmp_path, idle="5m").splitlines()
    changed = [(old, new) for old, new in zip(published, printed, strict=True) if old != new]
    assert changed == [("    uri: hf://HuggingFaceTB/SmolLM2-135M-Instruct", f"    uri: file://{tmp_path}")]


def test_ctrl_c_ends_the_demo_without_a_traceback(smollm2_dir):
    demo = subprocess.Popen([WISP, "demo"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in demo.stdout:
        if "asleep" in line:
            break
    time.sleep(0.3)
    demo.send_signal(signal.SIGINT)
    _, stderr = demo.communicate(timeout=280)
    assert (demo.returncode, "Traceback" in stderr) == (130, False), stderr
