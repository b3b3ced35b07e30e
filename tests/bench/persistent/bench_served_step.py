"""Time the parts of a served decode step: kernels, copies, the host's work, and the step as a whole.

    python tests/bench/persistent/bench_served_step.py fp8:1,32 int4 --json parts.json      on a GPU

The engine of ``wisp-runtime bench decode``. A row has the step as served (median of steps between two
outputs), then milliseconds by events of 20 repeats, at the context that the served steps have on average:
``kernel``, the forward pass, launches back to back; ``graph``, with sampling, replayed; ``copies``, the graph
with the upload of inputs and the copies of results, as the engine enqueues them. ``host_us`` are means of a
step's parts on the host: all but ``wait`` overlap the step before.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cupy as cp

from wisp_runtime.bench.steps import WARM_UP_STEPS, decode_row
from wisp_runtime.bench.target import Target, TargetOptions, open_target
from wisp_runtime.engine.execution.packing import size_bytes
from wisp_runtime.engine.scheduling.scheduler import Scheduler

_SIZES, _STEPS, _REPEATS, _RUNS = (1, 8, 16, 32), 128, 20, 5


def main() -> None:
    """Read the command line, measure each format, print and write the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("formats", nargs="+", help="FORMAT[:B,B,...]")
    parser.add_argument("--shape", default="llama-3-8b")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for given in options.formats:
        quantization, _, sizes = given.partition(":")
        batches = [int(size) for size in sizes.split(",")] if sizes else list(_SIZES)
        most = options.context + WARM_UP_STEPS + _STEPS + 3
        target = open_target(
            TargetOptions(
                options.shape,
                "cuda",
                max(batches),
                most,
                kv_tokens=max(batches) * (most + 16),
                quantization=quantization,
            )
        )
        for batch in batches:
            rows.append({"format": quantization} | ServedStep(target, batch, options.context).measure())
            print(json.dumps(rows[-1]), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


class ServedStep:
    """Decode steps of ``batch`` sequences of ``context`` tokens."""

    def __init__(self, target: Target, batch: int, context: int) -> None:
        self._target, self._batch, self._context = target, batch, context
        self._runner: Any = target.runner
        self._staging: Any = self._runner._staging
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._keys: dict[Any, Any] = {}  # of graphs, by bucket

    def measure(self) -> dict[str, Any]:
        """Return the times of the step and of its parts."""
        served = self._serve()
        context = self._context + WARM_UP_STEPS + _STEPS // 2
        self._set_context(context)
        graph, _ = self._runner.graphs._captured[self._keys[self._staged.bucket]]
        forward, batch = self._runner.forward_pass, self._staged.batch
        ms = {
            "kernel": self._time(lambda: forward(batch)),
            "graph": self._time(graph.launch),
            "copies": self._time(lambda: self._replay(graph)),
        }
        self._set_context(self._context)
        ms["kernel_at_first"] = self._time(lambda: forward(batch))
        self._set_context(context)
        host = {name: round(1e6 * statistics.mean(times)) for name, times in self._seconds.items()}
        return {
            "batch": self._batch,
            "path": served.to_dict()["path"],
            "served": served.value,
            "context": context,
            "ms": ms,
            "host_us": host,
        }

    def _serve(self) -> Any:
        """Run the benchmark's steps; keep the last of them, and the times of the host."""
        staging, runner = self._staging, self._runner
        fetch, forward, run = staging.fetch, runner.forward, runner.graphs.run
        make_scheduler = self._target.scheduler

        def kept(staged: Any, sampled: Any) -> Any:
            if staged.bucket is not None and staged.valid_rows == self._batch:
                self._staged, self._sampled = staged, sampled
            return fetch(staged, sampled)

        def keyed(key: Any, body: Any) -> Any:
            self._keys[key[0]] = key
            return run(key, body)

        def timed_forward(plan: Any) -> Any:
            step = self._timed("forward", lambda: forward(plan))
            wait = step.sampled_tokens
            return _Waited(step, lambda: self._timed("wait", wait))

        def scheduler() -> Scheduler:
            made: Any = make_scheduler()
            for name in ("plan", "commit"):
                setattr(made, name, self._timed_call(name, getattr(made, name)))
            return made

        staging.stage = self._timed_call("stage", staging.stage)
        staging.fetch, runner.forward, runner.graphs.run = kept, timed_forward, self._timed_call("run", keyed)
        target = _WithScheduler(self._target, scheduler)
        try:
            return decode_row(
                target,  # type: ignore[arg-type]
                batch=self._batch,
                context=self._context,
                steps=_STEPS,
                sampling={"temperature": 0.0},
            )
        finally:
            del staging.stage, staging.fetch, runner.forward, runner.graphs.run

    def _timed_call(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **keywords: self._timed(name, lambda: call(*args, **keywords))

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        began_s = time.perf_counter()
        result = call()
        self._seconds[name].append(time.perf_counter() - began_s)
        return result

    def _set_context(self, context: int) -> None:
        """Give all sequences of the kept step a context, on the device and where it is uploaded from."""
        arrays = self._staged.pinned.views[self._staged.bucket]
        arrays.positions[:], arrays.context_lengths[:] = context - 1, context
        self._upload()
        cp.cuda.Device().synchronize()

    def _upload(self) -> None:
        staging, bucket = self._staging, self._staged.bucket
        end = staging._sampler.parameter_bytes + size_bytes(staging._shape(bucket, bucket, bucket))
        staging._stream.upload(staging._inputs[:end], self._staged.pinned.inputs[:end])

    def _replay(self, graph: Any) -> None:
        self._upload()
        graph.launch()
        self._staging.fetch(self._staged, self._sampled)
        self._staged.pinned.done.record()

    def _time(self, launch: Callable[[], Any]) -> float:
        """Return the milliseconds of a launch: the median of runs of many, one behind the other."""
        times = []
        for _ in range(_RUNS):
            begin, end = cp.cuda.Event(), cp.cuda.Event()
            launch()
            begin.record()
            for _ in range(_REPEATS):
                launch()
            end.record()
            end.synchronize()
            times.append(cp.cuda.get_elapsed_time(begin, end) / _REPEATS)
        return round(statistics.median(times), 4)


class _Waited:
    """A launched step whose wait is timed."""

    def __init__(self, step: Any, sampled_tokens: Callable[[], Any]) -> None:
        self.plan, self.sample, self.sampled_tokens = step.plan, step.sample, sampled_tokens


class _WithScheduler:
    """A target that makes its schedulers otherwise."""

    def __init__(self, target: Target, scheduler: Callable[[], Scheduler]) -> None:
        self._target, self.scheduler = target, scheduler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


if __name__ == "__main__":
    main()
