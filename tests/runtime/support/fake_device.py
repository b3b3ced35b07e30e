"""A device without a GPU: memory is NumPy's, and work runs in order but late: only when it is waited for.

Or at once, which is the other end of what a real stream may do. Recordings run again on the same memory, as
CUDA graphs do. The toy model and a sampler compute on it.
"""

from __future__ import annotations

import pickle
from collections import deque
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from toy_engine import VOCAB, ToyModel, toy_runner, toy_sample

from wisp_plan.memory.alternatives import MAX_ALTERNATIVES
from wisp_runtime.batch import Batch, StepKind
from wisp_runtime.engine.execution.device_runner import DeviceRunner
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.models.model import Output
from wisp_runtime.ops.cuda.device.driver import translate


class FakeEvent:
    def __init__(self, stream):
        self.stream, self.place = stream, 0

    def record(self):
        self.place = self.stream.enqueued

    def synchronize(self):
        self.stream.run(self.place)


class FakeGraph:
    def __init__(self, stream, work):
        self.stream, self.work, self.launches = stream, work, 0

    def launch(self):
        self.launches += 1
        for task in self.work:
            self.stream.enqueue(task)


class FakeStream:
    def __init__(self, *, is_late=True):
        self.is_late = is_late
        self.queue = deque()
        self.enqueued = self.ran = self.device_bytes = 0
        self.recordings, self.recording = [], None

    def enqueue(self, work):
        if self.recording is not None:
            self.recording.append(work)
            return
        self.enqueued += 1
        self.queue.append(work)
        if not self.is_late:
            self.run(self.enqueued)

    def run(self, place):
        while self.ran < place:
            self.queue.popleft()()
            self.ran += 1

    translate_errors = staticmethod(translate)

    def host_memory(self, size_bytes):
        return np.zeros(size_bytes, np.uint8)

    def device_memory(self, size_bytes):
        self.device_bytes += size_bytes
        return np.zeros(size_bytes, np.uint8)

    def upload(self, device, host):
        assert device.nbytes == host.nbytes
        assert self.recording is None
        self.enqueue(lambda: np.copyto(device.view(np.uint8), host.view(np.uint8)))

    def upload_rows(self, device, host):
        assert device.shape == host.shape
        assert self.recording is None
        self.enqueue(lambda: np.copyto(device, host))

    def download(self, host, device):
        assert host.shape == device.shape
        assert self.recording is None
        self.enqueue(lambda: np.copyto(host, device))

    def event(self):
        return FakeEvent(self)

    def capture(self, body):
        self.recording = []
        result = body()
        self.recordings.append(FakeGraph(self, self.recording))
        self.recording = None
        return self.recordings[-1], result


class FakeSampler:
    """Parameters are a pickle in the memory it is given."""

    parameter_bytes = 1 << 14

    def __init__(self, stream, max_rows):
        self.stream = stream
        self.sampled = np.full(max_rows, -99, np.int32)
        self.is_sound = np.zeros(max_rows, np.uint8)
        self.logprobs = np.zeros(max_rows, np.float32)
        self.top_ids = np.zeros((max_rows, MAX_ALTERNATIVES), np.int32)
        self.top_logprobs = np.zeros((max_rows, MAX_ALTERNATIVES), np.float32)

    def host_view(self, memory):
        assert memory.shape == (self.parameter_bytes,)
        return memory

    def fill(self, view, sampling):
        data = pickle.dumps(sampling)
        view[:8] = np.frombuffer(np.int64(len(data)).tobytes(), np.uint8)
        view[8 : 8 + len(data)] = np.frombuffer(data, np.uint8)

    def launch(self, logits, rows, parameters, *, logprobs, greedy):
        assert logits.shape == (rows, VOCAB)

        def work():
            sampling = pickle.loads(parameters[8 : 8 + int(parameters[:8].view(np.int64)[0])].tobytes())
            live = len(sampling.steps)
            assert live <= rows
            assert greedy == (logprobs < 0 and not sampling.temperature.any())
            self.sampled[:live] = toy_sample(logits[:live], sampling).tokens
            self.is_sound[:live] = 1
            self.logprobs[:live] = -self.sampled[:live]
            self.top_ids[:live] = np.arange(MAX_ALTERNATIVES)
            self.top_logprobs[:live] = -np.arange(MAX_ALTERNATIVES)

        self.stream.enqueue(work)
        reported = {name: getattr(self, name)[:rows] for name in ("logprobs", "top_ids", "top_logprobs")}
        if logprobs < 0:
            reported = dict.fromkeys(reported)
        return SimpleNamespace(tokens=self.sampled[:rows], is_sound=self.is_sound[:rows], **reported)


class FakeModel:
    """The toy on the device: awaited tokens are looked up where the sampler left them."""

    def __init__(self, stream, sampler, toy):
        self.stream, self.sampler = stream, sampler
        self.toy = toy
        self.spec = self.toy.spec
        self.logits = np.zeros((len(sampler.sampled), VOCAB), np.float32)
        self.hidden = np.zeros((len(sampler.sampled), self.spec.hidden), np.float32)

    def forward(self, batch: Batch, cache):
        logits, hidden = (array[: len(batch.logit_rows)] for array in (self.logits, self.hidden))
        assert len(batch.query_starts_host) == len(batch.query_starts)

        def work():
            awaited = batch.tokens < 0
            known = batch.tokens.copy()
            known[awaited] = self.sampler.sampled[-1 - batch.tokens[awaited]]
            assert (known >= 0).all(), "a token that no step sampled"
            fields = {name: getattr(batch, name) for name in Batch.__dataclass_fields__}
            output = self.toy.forward(Batch(**(fields | {"tokens": known})), cache)
            logits[:], hidden[:] = output.logits, output.hidden

        self.stream.enqueue(work)
        return Output(logits, None if batch.kind is StepKind.DECODE else hidden)


def fake_device_runner(limits: Limits, *, is_late: bool = True, toy: ToyModel | None = None) -> DeviceRunner:
    """The real runner of a device, on a stream that runs late or at once."""
    stream = FakeStream(is_late=is_late)
    sampler = FakeSampler(stream, limits.max_running)
    on_host = toy_runner(limits.cache).forward_pass
    model, cache = FakeModel(stream, sampler, toy or on_host.model), on_host.cache

    def copy_slot(array, source, target):
        stream.enqueue(lambda: cache.copy_slot(array, source, target))

    return DeviceRunner(model, replace(cache, copy_slot=copy_slot), sampler, stream, limits)
