"""Simon Willison's ``llm``, by its command line, with the configuration that its manual shows."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TOKEN

LLM = Path(sys.executable).with_name("llm")


@pytest.fixture
def run(model, tmp_path):
    (tmp_path / "extra-openai-models.yaml").write_text(
        json.dumps(
            [{"model_id": "wisp", "model_name": model.name, "api_base": model.v1, "supports_tools": True}]
        )  # JSON is YAML
    )
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": TOKEN}

    def run(*arguments):
        command = [LLM, "-m", "wisp", *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    return run


def test_it_answers_on_the_command_line(run, model):
    options = ("-o", "max_tokens", "24", "-o", "temperature", "0")
    assert model.may_say(run("Say hello.", *options).strip())
    assert model.may_say(run("Say hello.", "--no-stream", *options).strip())


def test_it_calls_a_function(run, model):
    if not model.is_scripted:
        pytest.skip("a model of 135 million parameters seldom calls of itself")
    code = 'def shout(text: str) -> str:\n    "Shout."\n    return text.upper()'
    assert run("--functions", code, 'Shout. JSON:{"text": "oslo"}').strip() == "The tool says: OSLO"
