"""``/state`` at the border: what the contract says is read, anything else refuses the answer."""

import json

import pytest

from wisp_operator.core import runtime_state
from wisp_operator.core.runtime_state import MAX_BYTES, Ledger, Load, PhaseReport, RuntimeState, read


def test_a_runtimes_answer_is_read():
    document = {
        "model": "m",
        "status": "ready",
        "device": "cpu",
        "phases": [{"name": "weights", "seconds": 0.4, "state": "done", "bytes": 5, "totalBytes": 5}],
        "ledger": {"fits": True, "weightsBytes": 7, "headroomBytes": -1, "message": "m"},
        "load": {"waiting": 1, "running": 2, "kvBlocksUsed": 3, "tokensPerSecond": 1.5},
        "error": None,
    }
    assert read(json.dumps(document).encode()) == RuntimeState(
        model="m",
        status="ready",
        device="cpu",
        phases=(PhaseReport("weights", is_done=True, seconds=0.4, bytes=5, total_bytes=5),),
        load=Load(waiting=1, running=2, kv_blocks_used=3, tokens_per_second=1.5),
        ledger=Ledger(fits=True, message="m", weights_bytes=7, headroom_bytes=-1),
    )


@pytest.mark.parametrize(
    "document", [{}, {"phases": None, "load": None, "ledger": None, "status": None}, {"future": [1]}]
)
def test_what_is_absent_null_or_of_the_future_is_no_error(document):
    assert runtime_state.parse(document) == RuntimeState()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"7",
        b'{"phases": {}}',
        b'{"phases": [1]}',
        b'{"phases": [{"name": 1}]}',
        b'{"phases": [{"seconds": -1}]}',
        b'{"phases": [{"seconds": true}]}',
        b'{"phases": [{"bytes": 1e400}]}',
        b'{"load": {"running": NaN}}',
        b'{"load": {"running": Infinity}}',
        b'{"load": {"running": 1000001}}',  # status.queue is an int32, and sums of it must stay one
        b'{"load": {"kvBlocksUsed": 9007199254740993}}',
        b'{"load": {"running": ' + b"9" * 5000 + b"}}",  # longer than int() takes
        b'{"load": []}',
        b'{"ledger": "fits"}',
        b'{"ledger": {"message": "' + b"x" * 3000 + b'"}}',
        b'{"status": "' + b"x" * 200 + b'"}',
        b"[" * MAX_BYTES,
        b'{"a":' * 5000,
        b"\xff\xfe",
        b" " * (MAX_BYTES + 1),
        json.dumps({"phases": [{"name": "x"}] * 33}).encode(),
    ],
)
def test_anything_else_is_refused_with_a_reason(text):
    with pytest.raises(ValueError, match=r"."):
        read(text)
