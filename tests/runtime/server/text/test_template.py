"""Chat templates: Hugging Face's habits, and bounds on what comes with a model."""

from datetime import datetime

import pytest

from wisp_runtime.server.text.template import CompiledTemplate
from wisp_runtime.server.text.template_messages import ChatTemplate, TemplateFailed

USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0]['content'] }}", "<s>hi"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi"}'),
        ("{{ {'é': '<&>'} | tojson }}", '{"é": "<&>"}'),  # Jinja's own would escape for HTML
        ("{{ {'b': 1, 'a': [2]} | tojson(indent=1) }}", '{\n "b": 1,\n "a": [\n  2\n ]\n}'),
        ("{% if true %}\nline\n{% endif %}\n", "line\n"),  # trim_blocks
        ("  {% if true %}x{% endif %}", "x"),  # lstrip_blocks
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "ahib"),
        ("{% set ns = namespace(n=0) %}{% set ns.n = 5 %}{{ ns.n }}", "5"),
        ("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", "TrueTrueTrue"),
        ("{{ 'think' if enable_thinking else 'plain' }}", "plain"),
        ("{{ strftime_now('%Y') }}", str(datetime.now().year)),
        ("{{ '<b>' }}", "<b>"),  # no HTML escaping anywhere
    ],
)
def test_templates_render_as_transformers_renders_them(source, text):
    assert CompiledTemplate(source, {"bos_token": "<s>"}).render(USER) == text


def test_callers_may_name_what_the_template_asks_for():
    assert CompiledTemplate("{{ enable_thinking }}", {}).render(USER, {"enable_thinking": False}) == "False"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "Roles must alternate"),
        ("{{ messages[1].content }}", "no element 1"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ 1 / 0 }}", "zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "1000000 numbers"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "1000000 numbers"),
        ("{{ 'a' * 99999999 }}", "16777216 characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_template_that_refuses_or_runs_away_is_an_error(source, says):
    with pytest.raises(TemplateFailed, match=says):
        CompiledTemplate(source, {}).render(USER)


def test_a_template_with_a_typo_is_refused_when_the_model_is_loaded():
    with pytest.raises(TemplateFailed, match="no valid Jinja2"):
        CompiledTemplate("{% for %}", {})


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("{% if tools %}x{% endif %}", True),
        ("{%- for tool in tools -%}{% endfor %}", True),
        ("{{ f(not tools) }}", True),
        ("{{ 'tools' }} tools", False),  # texts
        ('{{ raise_exception("no tools here") }}', False),
        ("{% if message.tools %}{% endif %}", False),  # another's attribute
    ],
)
def test_a_template_reads_a_name_if_its_code_does(source, reads):
    assert ChatTemplate(source, {}).reads("tools") is reads
