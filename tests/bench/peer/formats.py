"""vLLM and Wisp on the same quantized checkpoints of an 8B's shape, on one GPU, in one call.

    python tests/bench/peer/formats.py --out OUT --commit COMMIT        from the repository's root

Weights in fp8, int8, int4 and nvfp4 are what `wisp-runtime quantize --method rtn` makes of one random
checkpoint; mxfp4 and fp8_block are random codes (random_weights.py). All of vLLM's servers start at once, and
while they do, small models of the four formats are compared token by token in vLLM and transformers. Then
each server is measured alone, the others idle; then Wisp's, one after the other. A server that is not ready,
or no longer fits into --limit-s, is left out and said.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from compare import VLLM, WRITE, arguments, build_kernels, prepare, unpack_carried
from measuring import DRY, Clock, Measurement, Sizes, table
from random_weights import SECTIONS
from servers import HOST, OFFLINE, ROOT, Command, Server, stand_in, started, vllm, wait_for_gpu, wisp

FORMATS = ("fp8", "int4", "nvfp4", "mxfp4", "fp8_block", "int8")
OTHERS = ROOT / "tests/bench/quality/beside_others.py"
KV_BYTES = 10 << 30
SERVER_S, START_S = 17.0, 7.0  # of measuring a server, and of Wisp's start
FLAGS = ["--gpu-memory-utilization", "0.15", "--kv-cache-memory-bytes", str(KV_BYTES)]
ENVIRONMENT = {"fp8_block": {"VLLM_USE_DEEP_GEMM": "0"}}  # it compiles for minutes at its first start
WEIGHT_ONLY = "vllm-weight-only"  # FP8 in its Marlin kernels, activations in 16 bits
NOTE = (
    "both servers over HTTP in one call on the same stored checkpoint, vLLM 0.26.0 first; how each was set: "
    "tests/bench/peer/README.md"
)


class Formats:
    """One call.

    Args:
        measurements: the record of each format.
        ready_s: seconds after the begin when vLLM's servers must be ready.
    """

    def __init__(self, measurements: dict[str, Measurement], ready_s: float, *, is_dry: bool) -> None:
        self.measurements, self.ready_s, self.is_dry = measurements, ready_s, is_dry
        shared = next(iter(measurements.values()))
        self.sizes, self.clock, self.work, self.out = shared.sizes, shared.clock, shared.work, shared.out
        self.servers: dict[str, Server] = {}
        self._source_written, self._kernels_built = threading.Event(), threading.Event()

    @property
    def kernels(self) -> Path:
        """Folder of the compiled kernels."""
        return self.work / "kernels"

    def folder(self, form: str) -> Path:
        """Return the folder of a format's checkpoint."""
        return self.work / self.sizes.shape / form

    def run(self) -> None:
        """Make all checkpoints and start vLLM's servers, then measure."""
        try:
            with ThreadPoolExecutor(16) as background:
                self._start(background)
                self._measure_vllm()
        finally:
            for server in self.servers.values():
                server.kill()
        wait_for_gpu(10.0)
        self._measure_wisp()

    def _start(self, background: ThreadPoolExecutor) -> None:
        """Run until all of vLLM's servers are ready, or the time for it is over."""
        writing = background.submit(self._write_source)
        if not self.is_dry:
            unpack_carried(self.work, self.kernels, self.clock)
        tasks: list[Future[None]] = [writing, background.submit(self._compare_tokens)]
        tasks.append(background.submit(self._build_kernels))
        made = [form for form in self.measurements if form not in SECTIONS]
        threads = str(max(2, 16 // max(1, len(made))))
        tasks += [background.submit(self._serve, form, threads) for form in self.measurements]
        done, late = wait(tasks, max(1.0, self._boot_left_s))
        failed = [error for task in done if (error := task.exception())]
        self.clock.say(f"vLLM's servers had their time: {len(late)} tasks are late, failures: {failed}")

    @property
    def _boot_left_s(self) -> float:
        return self.ready_s - (self.clock.limit_s - self.clock.left_s)

    def _run(self, name: str, words: list[str], more: Mapping[str, str] = MappingProxyType({})) -> int:
        """Run one of our scripts within the time of the start, its output in a log."""
        with (self.out / f"{name}.log").open("wb") as log:
            try:
                done = subprocess.run(
                    [sys.executable, *words],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=max(1.0, self._boot_left_s),
                    check=False,
                    env=os.environ | OFFLINE | {"WISP_KERNELS": str(self.kernels)} | dict(more),
                )
            except subprocess.TimeoutExpired:
                self.clock.say(f"{name}: no time left")
                return 1
        self.clock.say(f"{name}: status {done.returncode}")
        return done.returncode

    def _write_source(self) -> None:
        try:
            self._run("source", ["-c", WRITE, self.sizes.shape, str(self.work / "source")])
        finally:
            self._source_written.set()

    def _build_kernels(self) -> None:
        try:
            build_kernels(self.kernels, self.clock, is_dry=self.is_dry)
        finally:
            self._kernels_built.set()

    def _serve(self, form: str, threads: str) -> None:
        """Make a format's checkpoint, start vLLM on it, and generate our tokens meanwhile."""
        folder = self.folder(form)
        if form in SECTIONS:
            script = Path(__file__).with_name("random_weights.py")
            words = [str(script), self.sizes.shape, form, str(folder)]
        else:
            self._source_written.wait()
            words = [str(OTHERS), "quantize", str(folder.parent), "--source", str(self.work / "source")]
            words += ["--format", form, "--threads", threads]
        if self._run(f"make-{form}", words):
            return
        server = self.servers[form] = Server(self._vllm(form), self.out, name=f"vllm-{form}")
        if form not in SECTIONS:
            self._kernels_built.wait()
            words = [str(OTHERS), "generate", str(folder.parent), "--format", form]
            self._run(f"generate-{form}", [*words, "--device", self.sizes.device])
        is_ready = server.wait_ready(self._boot_left_s)
        self.clock.say(f"vLLM {form}: ready {is_ready} after {server.age_s:.1f} s")

    def _vllm(self, form: str) -> Command:
        port = 18100 + FORMATS.index(form)
        if self.is_dry:
            return stand_in(port, name=VLLM)
        names = ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
        caches = {name: str(self.work / "cache" / form / name) for name in names}
        more = {"TORCHINDUCTOR_COMPILE_THREADS": "4", **caches, **ENVIRONMENT.get(form, {})}
        return vllm(self.folder(form), self.work, port, name=VLLM, flags=FLAGS, environment=more)

    def _compare_tokens(self) -> None:
        """Compare the tokens of small models."""
        work = str(self.work / "small")
        words = ["generate", work, "--device", self.sizes.device]
        if self._run("small-quantize", [str(OTHERS), "quantize", work]):
            return
        self._kernels_built.wait()
        if self._run("small-generate", [str(OTHERS), *words]) or self.is_dry:
            return
        asked = [["--format", form] for form in ("fp8", "int8", "int4", "nvfp4")]
        asked += [["--format", "fp8", "--label", WEIGHT_ONLY], ["--engine", "transformers"]]
        with ThreadPoolExecutor(8) as pool:
            for flags in asked:
                more = {"VLLM_TEST_FORCE_FP8_MARLIN": "1"} if WEIGHT_ONLY in flags else {}
                name = "small-" + "-".join(flags[1::2])
                pool.submit(self._run, name, [str(OTHERS), "ask", work, *flags], more)

    def _measure_vllm(self) -> None:
        """Measure each of vLLM's servers that is ready, if Wisp can be measured too."""
        for form, measured in self.measurements.items():
            server = self.servers.get(form)
            if server is None or not server.is_ready():
                continue
            others = sum(1 for each in self.measurements.values() if each.rows)
            if self.clock.left_s < SERVER_S + (others + 1) * (SERVER_S + START_S):
                self.clock.say(f"no time for {form}: {self.clock.left_s:.0f} s are left")
            else:
                self.clock.say(f"vLLM {form}")
                self._ask(form, server)
                self._measure(measured, server)

    def _ask(self, form: str, server: Server) -> None:
        """Have vLLM's server score the tokens of ours on the same checkpoint."""
        if form in SECTIONS or self.is_dry:
            return
        words = [str(OTHERS), "ask", str(self.folder(form).parent), "--engine", "server", "--format", form]
        at = f"http://{HOST}:{server.command.port}"
        subprocess.run(["timeout", "20", sys.executable, *words, "--url", at], check=False)

    def _measure_wisp(self) -> None:
        for form, measured in self.measurements.items():
            if not measured.rows:
                continue
            if self.clock.left_s < SERVER_S + START_S:
                self.clock.say(f"no time for Wisp's {form}: {self.clock.left_s:.0f} s are left")
                continue
            command = wisp(self.folder(form), self.sizes.device, 18200, self.kernels)
            with started(command, self.out, name=f"wisp-{form}") as server:
                if server.wait_ready(30.0):
                    self.clock.say(f"wisp {form} is ready after {server.age_s:.1f} s")
                    self._measure(measured, server)

    @staticmethod
    def _measure(measured: Measurement, server: Server) -> None:
        measured.alone(server, repeats=5)
        measured.streams(server)
        measured.prompts_at_once(server)


def keep_tokens(measured: Measurement, works: tuple[Path, Path]) -> None:
    """Print how many greedy tokens are the same, and write their record."""
    rows = []
    for work in works:
        compare = [sys.executable, str(OTHERS), "compare", str(work)]
        done = subprocess.run(compare, check=False, capture_output=True, text=True)
        print(done.stdout, flush=True)
        rows += [{"metric": "same_tokens"} | json.loads(line) for line in done.stdout.splitlines()]
    if rows:
        note = (
            "greedy tokens of quantized checkpoints that wisp-runtime quantize wrote, ours scored by another "
            "engine on the same card; worst_nats: its lead where it differs; vllm-weight-only multiplies FP8 "
            "by 16-bit activations"
        )
        replace(measured, name="same-tokens", note=note, rows=rows).keep()


def main() -> int:
    """Compare; return 0 if every format was measured of both."""
    parser = arguments(__doc__, 390.0)
    parser.add_argument("--format", dest="forms", action="append", choices=FORMATS)
    parser.add_argument("--ready-s", type=float, default=180.0, help="limit of vLLM's starts")
    asked = parser.parse_args()
    prepare(asked)
    forms, clock = asked.forms or list(FORMATS[:5]), Clock(asked.limit_s)
    sizes = DRY if asked.dry_run else Sizes(clients="1,8,16,32,64")
    command = ["python", "tests/bench/peer/formats.py", "--out", "OUT"]
    measurements = {
        form: Measurement(
            f"beside-vllm-{form}", NOTE, command, sizes, clock, asked.work, asked.out, asked.commit, form
        )
        for form in forms
    }
    (asked.work / sizes.shape).mkdir(parents=True, exist_ok=True)
    try:
        Formats(measurements, asked.ready_s, is_dry=asked.dry_run).run()
    finally:
        clock.say("done")
        for measured in measurements.values():
            print("\n".join(table(measured.rows)), flush=True)
        keep_tokens(measurements[forms[0]], (asked.work / "small", asked.work / sizes.shape))
    both = {VLLM, "wisp"}
    return 0 if all({row["server"] for row in each.rows} >= both for each in measurements.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
