"""A runtime's process around a scripted engine: ``scripted_runtime.py MODEL_DIR [FLAG VALUE …]``.

A prompt with "engine fails" has the engine fail at its request; any other is answered "Hello, world".
"""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "runtime/support"))
from fake_engine import FakeEngine, write_model

from wisp_runtime.cli.serve import command
from wisp_runtime.server import process


class Engine(FakeEngine):
    async def _play(self, request, queue):
        prompt = bytes(token for token in request.prompt if token < 256)
        self.fails_with = "a scripted failure" if b"engine fails" in prompt else ""
        await super()._play(request, queue)


async def start(_):
    engine = Engine()
    engine.delay_s = 0.001
    asyncio.get_running_loop().call_soon(engine.become_ready)
    return engine


if __name__ == "__main__":
    serve = process.run
    process.run = lambda config: serve(config, start)
    folder, *flags = sys.argv[1:]
    command.main([str(write_model(Path(folder))), "--served-name", "tiny", *flags])
