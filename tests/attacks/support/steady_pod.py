"""A pod that streams one event every 20 ms, in a process of its own: ``python steady_pod.py PORT``.

It answers any POST; a streamed one with ``max_tokens`` events (default 1,000), another with a fixed text that
names the model. A body of an attacker's size is not parsed. ``/readyz`` is 200, ``/state`` that of a runtime.
"""

from __future__ import annotations

import asyncio
import json
import sys

from aiohttp import web

GAP_S = 0.02
MAX_PARSED_BYTES = 65536
STATE = {"model": "m", "status": "ready", "phases": [], "load": {"waiting": 0, "running": 0}}


async def generate(request: web.Request) -> web.StreamResponse:
    """Stream events at a steady rate, or answer at once."""
    data = await request.read()
    body = json.loads(data) if len(data) < MAX_PARSED_BYTES else {"model": "large"}
    model = body.get("model", "")
    if not body.get("stream"):
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": model}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response({"object": "chat.completion", "choices": [choice], "usage": usage})
    answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await answer.prepare(request)
    event = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "w "}}]}
    line = b"data: " + json.dumps(event).encode() + b"\n\n"
    loop = asyncio.get_running_loop()
    due = loop.time()
    for _ in range(int(body.get("max_tokens", 1000))):
        await answer.write(line)
        due = max(due + GAP_S, loop.time() - GAP_S)
        await asyncio.sleep(due - loop.time())
    await answer.write(b"data: [DONE]\n\n")
    await answer.write_eof()
    return answer


async def state(_: web.Request) -> web.Response:
    """Answer as a runtime that is ready."""
    return web.json_response(STATE)


def main(port: int) -> None:
    """Serve until killed."""
    app = web.Application(client_max_size=1 << 30)
    app.add_routes([web.get("/readyz", state), web.get("/livez", state), web.get("/state", state)])
    app.add_routes([web.post("/{path:.*}", generate)])
    web.run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    main(int(sys.argv[1]))
