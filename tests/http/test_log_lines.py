"""Lines of the logs: nothing that a client sends can begin one, or look like another field."""

import io
import json
import logging
import re
import sys
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wisp_http.log_lines import FIELDS, JsonLines, TextLines, request_id, set_up_log

HOSTILE = 'a\n2026-01-01T00:00:00.000Z INFO x: answered request=b\r\x1b[31m\u2028\ud800 status=200 "q" \\'
TEXT = st.one_of(
    st.text(), st.just(HOSTILE), st.text(st.characters(codec=None, categories=["Cc", "Zl", "Zp", "Cs"]))
)
FIELD = re.compile(r' ([a-z_]+)=("(?:[^"\\]|\\.)*"|[^\s"=]+)')


def joined(text):
    """Surrogates that form a character together are read back as that character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def record(message, fields=None, error=None):
    made = logging.LogRecord("wisp", logging.INFO, "", 0, "%s", (message,), error)
    setattr(made, FIELDS, fields or {})
    return made


def raised(text):
    try:
        raise ValueError(text)
    except ValueError:
        return sys.exc_info()


@given(TEXT, TEXT)
@example(HOSTILE, HOSTILE)
def test_a_line_of_text_is_one_whatever_was_sent(message, value):
    lines = TextLines().format(record(message, {"path": value, "status": 7}, raised(value))).split("\n")
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]{12}Z INFO    wisp: ", lines[0])
    assert all(line.startswith("    ") for line in lines[1:])
    assert not any(re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", line) for line in lines)
    assert all(len(line.splitlines()) <= 1 for line in lines)


@given(TEXT)
@example(HOSTILE)
def test_a_field_of_text_holds_no_other_field(value):
    line = TextLines().format(record("answered", {"path": value, "status": 7}))
    expected = {"status": "7"} if value == "" else {"path": joined(value[:512]), "status": "7"}
    read = {name: json.loads(word) if word[0] == '"' else word for name, word in FIELD.findall(line)}
    assert read == expected


@given(TEXT, TEXT)
@example(HOSTILE, HOSTILE)
def test_a_line_of_json_is_one_object_with_what_was_sent(message, value):
    line = JsonLines().format(record(message, {"path": value, "level": "error", "n": None}, raised(value)))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    read = json.loads(line)
    assert (read["message"], read["path"], read["level"]) == (joined(message), joined(value), "info")
    assert "ValueError" in read["traceback"]
    assert "n" not in read


@pytest.mark.parametrize("form", ["text", "json"])
def test_records_of_a_request_have_its_id(form):
    written, former = io.StringIO(), logging.getLogger().handlers[:]
    try:
        set_up_log("info", form, written)
        token = request_id.set("req-1")
        logging.getLogger("wisp").warning("a pod ended")
        request_id.reset(token)
        logging.getLogger("wisp").warning("idle")
    finally:
        logging.getLogger().handlers[:] = former
    with_id, without = written.getvalue().splitlines()
    assert "req-1" in with_id
    assert "request" not in without


def test_a_record_costs_microseconds():
    fields = {"request": "req-" + "0" * 32, "path": "/v1/chat/completions", "status": 200, "seconds": 1.25}
    for formatter in (TextLines(), JsonLines()):
        began_s = time.process_time()
        for _ in range(2000):
            formatter.format(record("answered", fields))
        assert (time.process_time() - began_s) / 2000 < 500e-6  # 10 µs to 20 µs on an idle machine
