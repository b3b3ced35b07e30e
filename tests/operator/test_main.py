"""The operator's log: one line a message, whatever a tenant's object says."""

import logging

from wisp_operator.main import OneLineFormatter


def test_a_quoted_message_forges_no_line_and_a_traceback_keeps_its_own():
    formatter = OneLineFormatter("%(levelname)s %(message)s")
    record = logging.LogRecord("x", logging.INFO, "f", 1, "%s", ("a\n2026 ERROR b\r\x1b[2Jc",), None)
    assert formatter.format(record) == "INFO a 2026 ERROR b  [2Jc"
    try:
        raise ValueError("no")
    except ValueError as error:
        record.exc_info = (ValueError, error, error.__traceback__)
    assert formatter.format(record).splitlines()[1] == "Traceback (most recent call last):"
