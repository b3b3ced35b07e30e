"""The engine's process and the client that drives it: start, serve, abort, and every way to die."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.client import EngineClient
from wisp_runtime.engine.transport.messages import Phase, SamplingParams, Submit
from wisp_runtime.errors import EngineDied

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from toy_engine import VOCAB, answer

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(autouse=True)
def _toy_can_be_imported(monkeypatch):
    here, others = str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (here, others))))


def request(name, prompt=(1, 2, 3), max_tokens=20, **fields):
    return Submit(name, prompt, max_tokens, **{"sampling": GREEDY, "ignore_eos": True, **fields})


@asynccontextmanager
async def toy(trouble="none", *, waits=True, **settings):
    engine = await EngineClient.start(ServeConfig(model=trouble, **settings), entry="toy_engine")
    try:
        if waits:
            await asyncio.wait_for(engine.ready.wait(), 60)
        yield engine
    finally:
        await engine.shutdown()


async def follow(engine, submit):
    events = [event async for event in engine.submit(submit)]
    return [event.token for event in events if event.token is not None], events[-1].finish


async def until(claim, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not claim():
        assert time.monotonic() < deadline, "it did not come true in time"
        await asyncio.sleep(0.01)


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_it_starts_serves_many_at_once_and_ends_with_status_0():
    requests = [request(f"r{n}", (1, 2, n % 5), 5 + n) for n in range(20)]

    async def run():
        async with toy(max_concurrent=4, max_step_tokens=8) as engine:
            assert [phase.name for phase in engine.phases] == ["import", "weights"]
            assert all(phase.is_done for phase in engine.phases)
            assert (engine.info.kernels, engine.info.device) == ({"set": "toy"}, "cpu")
            assert engine.load.kv_blocks_total == 64  # before the first step, too
            got = await asyncio.gather(*(follow(engine, request) for request in requests))
            assert engine.load.running == engine.load.waiting == engine.load.kv_blocks_used == 0
        assert engine._process.returncode == 0
        assert not engine.failed.done()
        return got

    assert asyncio.run(run()) == [(answer(request, 128), "length") for request in requests]


def test_a_phase_that_runs_has_the_seconds_since_it_began(monkeypatch):
    now_s = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now_s[0])
    monkeypatch.setattr("wisp_runtime.engine.transport.client.time", clock)

    async def run():
        client = EngineClient(SimpleNamespace(), SimpleNamespace())
        client._take(Phase("import", 0.5, is_done=True))
        for copied in (0, 10, 20):
            client._take(Phase("weights", bytes=copied, total_bytes=40))
            now_s[0] += 1.0
        return [(phase.name, phase.seconds, phase.bytes) for phase in client.phases]

    assert asyncio.run(run()) == [("import", 0.5, 0), ("weights", 3.0, 20)]


def test_a_request_sent_before_the_engine_is_ready_is_served_when_it_is():
    async def run():
        async with toy("late", waits=False) as engine:
            return await follow(engine, request("early"))

    assert asyncio.run(run()) == (answer(request("early"), 128), "length")


def test_a_request_that_can_never_run_is_refused_and_harms_no_one():
    async def run():
        async with toy() as engine:
            good, bad = request("good"), request("bad", (1, 99))
            (tokens, _), (none, finish) = await asyncio.gather(follow(engine, good), follow(engine, bad))
            return tokens == answer(good, 128), none, finish

    assert asyncio.run(run()) == (True, [], "refused")


def test_a_stranger_is_served_beside_all_choices_of_a_request():
    async def run():
        async with toy("slow", max_concurrent=4) as engine:
            submits = [request(f"many-{k}", max_tokens=100, choice=k) for k in range(128)]
            following = [asyncio.create_task(follow(engine, submit)) for submit in submits]
            await until(lambda: engine.load.running == 4)
            before = engine.load.steps
            async for _ in engine.submit(request("stranger", (4, 5))):
                break
            steps = engine.load.steps - before
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            return steps

    assert asyncio.run(run()) < 1000  # before: 3,200; on an idle machine 2


def test_choices_of_a_request_cross_the_pipe_in_one_message_that_has_their_prompt_once():
    async def run():
        async with toy("stuck") as engine:
            sent, write = [], engine._writer.write
            engine._writer.write = lambda data: (sent.append(len(data)), write(data))
            prompt, stops = tuple(range(1, 90)), tuple(range(20_000))
            submits = [request(f"r{k}", prompt, stop_token_ids=stops, choice=k) for k in range(128)]
            following = [asyncio.create_task(follow(engine, submit)) for submit in submits]
            await asyncio.sleep(0.1)
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            return sent

    sent = asyncio.run(run())
    assert len(sent) <= 3  # a message for the choices, one for their aborts
    assert sum(sent) < 150_000  # 7.4 MB if each had brought its own


def test_requests_that_the_engine_has_not_read_yet_are_not_encoded():
    async def run():
        async with toy() as engine:
            engine._process.send_signal(signal.SIGSTOP)  # it reads nothing from now on
            following = []
            for n in range(200):
                submit = request(f"r{n}", stop_token_ids=tuple(k % VOCAB for k in range(n, 20_000 + n)))
                following.append(asyncio.create_task(follow(engine, submit)))
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)
            waiting_bytes = engine._writer.transport.get_write_buffer_size()
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            engine._process.send_signal(signal.SIGCONT)
            return waiting_bytes

    assert asyncio.run(run()) < 1 << 20  # 8 MB if all were encoded at once


def test_an_abort_ends_the_stream_and_frees_the_blocks():
    async def run():
        async with toy("slow") as engine:
            finishes = []
            async for event in engine.submit(request("r", max_tokens=120)):
                finishes.append(event.finish)
                if len(finishes) == 3:
                    engine.abort("r")
            assert finishes[-1] == "abort"
            assert len(finishes) < 120
            await until(lambda: engine.load.kv_blocks_used == engine.load.running == 0)

    asyncio.run(run())


def test_an_abort_does_not_wait_for_the_step_that_runs():
    async def run():
        async with toy("stuck") as engine:
            following = asyncio.create_task(follow(engine, request("r")))
            await asyncio.sleep(0.1)
            engine.abort("r")
            assert await asyncio.wait_for(following, 60) == ([], "abort")
            engine._process.kill()

    asyncio.run(run())


def test_a_client_that_leaves_aborts_its_request():
    async def run():
        async with toy("slow") as engine:
            leaving = asyncio.create_task(follow(engine, request("r", max_tokens=120)))
            await until(lambda: engine.load.running == 1)
            leaving.cancel()
            await until(lambda: engine.load.running == 0)
            assert engine.load.generated_tokens_total < 120
            assert (await follow(engine, request("next")))[1] == "length"

    asyncio.run(run())


def test_two_running_requests_cannot_have_one_id():
    async def run():
        async with toy("slow") as engine:
            first = asyncio.create_task(follow(engine, request("same")))
            await until(lambda: engine.load.running == 1)
            with pytest.raises(ValueError, match="unique"):
                await follow(engine, request("same"))
            assert (await first)[0] == answer(request("same"), 128)

    asyncio.run(run())


def test_kill_9_gives_every_waiting_request_a_clean_error():
    async def run():
        async with toy("slow") as engine:
            waiting = [asyncio.create_task(follow(engine, request(f"r{n}", max_tokens=99))) for n in range(3)]
            await until(lambda: engine.load.running == 3)
            os.kill(engine.pid, signal.SIGKILL)
            results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
            assert [type(result) for result in results] == [EngineDied] * 3
            assert "signal 9" in str(results[0])
            assert (await engine.failed).reason == "EngineDied"
            with pytest.raises(EngineDied):
                await follow(engine, request("after"))

    asyncio.run(run())


def test_a_step_that_raises_ends_the_engine_with_what_happened():
    async def run():
        async with toy("raises") as engine:
            with pytest.raises(EngineDied, match="the toy was asked to raise"):
                await follow(engine, request("r"))
            fatal = await engine.failed
            assert (fatal.reason, fatal.exit_code) == ("EngineFailed", 1)
            assert engine._process.returncode == 1

    asyncio.run(run())


def test_an_engine_that_reported_its_end_and_does_not_exit_keeps_no_request_waiting():
    async def run():
        async with toy("lingers") as engine:
            with pytest.raises(EngineDied, match="asked to linger"):
                await asyncio.wait_for(follow(engine, request("r")), 60)
            assert (await engine.failed).reason == "EngineFailed"
            assert engine._process.returncode == -signal.SIGKILL

    asyncio.run(run())


def test_an_idle_engine_sleeps():
    async def run():
        async with toy() as engine:
            await follow(engine, request("r"))
            deadline, ticks = time.monotonic() + 60, 50
            while ticks > 2:  # the end of a step may take its time
                assert time.monotonic() < deadline, f"{ticks} ticks within half a second"
                before = cpu_ticks(engine.pid)
                await asyncio.sleep(0.5)
                ticks = cpu_ticks(engine.pid) - before

    def cpu_ticks(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])

    asyncio.run(run())


def test_signals_are_left_to_the_server():
    async def run():
        async with toy() as engine:
            os.kill(engine.pid, signal.SIGINT)
            os.kill(engine.pid, signal.SIGTERM)
            assert (await follow(engine, request("r")))[1] == "length"

    asyncio.run(run())


PARENT = """
import asyncio, sys
from wisp_runtime.config import ServeConfig
from wisp_runtime.engine.transport.client import EngineClient
from wisp_runtime.engine.transport.messages import Submit

async def run():
    engine = await EngineClient.start(ServeConfig(model=sys.argv[1]), entry="toy_engine")
    await engine.ready.wait()
    print(engine.pid, flush=True)
    async for event in engine.submit(Submit("r", (1,), 100)):
        pass
    await asyncio.sleep(60)

asyncio.run(run())
"""


@pytest.mark.parametrize("trouble", ["none", "stuck"])  # stuck: in the middle of a step
def test_the_engine_ends_with_its_parent(trouble):
    with subprocess.Popen([sys.executable, "-c", PARENT, trouble], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        assert not is_gone(pid)
        parent.kill()
        asyncio.run(until(lambda: is_gone(pid)))


LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 800,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


@pytest.mark.parametrize(
    ("config", "settings", "expect"),
    [
        (None, {}, ("ModelNotFound", 1, "is not there")),
        ({"architectures": ["Mystery"]}, {}, ("ModelUnsupported", 1, "Mystery")),
        # There are no weights in the folder: the check comes before they are looked for.
        (LLAMA_70B, {}, ("DoesNotFit", 3, "this machine has")),
        (LLAMA_70B, {"max_context": 9000}, ("ConfigError", 2, "8192")),
        (LLAMA_70B, {"quantization": "fp8"}, ("ConfigError", 2, "fp8")),
        (LLAMA_70B | {"num_hidden_layers": 1, "vocab_size": 8}, {}, ("ModelNotFound", 1, "safetensors")),
    ],
)
def test_a_start_that_fails_says_why_and_with_which_status_to_exit(tmp_path, config, settings, expect):
    folder = tmp_path / "model"
    if config is not None:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))

    async def run():
        engine = await EngineClient.start(ServeConfig(model=str(folder), **settings))
        fatal = await asyncio.wait_for(engine.failed, 60)
        await engine.shutdown()
        return fatal, engine._process.returncode

    fatal, status = asyncio.run(run())
    assert (fatal.reason, fatal.exit_code) == expect[:2], fatal.message
    assert expect[2] in fatal.message
    assert status == fatal.exit_code
