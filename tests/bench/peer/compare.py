"""vLLM's OpenAI server and Wisp's under the same load on one GPU, one after the other, in one call.

    python tests/bench/peer/compare.py --out OUT --commit COMMIT       from the repository's root

Needs what pack.py made in .peer/ (site.tar.xz, and kernels.tar.xz if there is one); README.md beside this
file has the rest. Results are printed as they come; OUT gets the record and the logs. Every stage has a
limit, and --limit-s bounds the sum: what no longer fits is left out and said. --dry-run needs no GPU and no
vLLM.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from measuring import CLI, DRY, Clock, Measurement, Sizes, table
from servers import ROOT, Command, stand_in, started, unpack, vllm, wisp

VLLM, TUNED = "vllm-0.26.0", "vllm-0.26.0 tuned"
WRITE = "import sys; from pathlib import Path; from wisp_runtime.bench.checkpoint import write_checkpoint; "
WRITE += "write_checkpoint(sys.argv[1], Path(sys.argv[2]), lambda done, total: None)"
NOTE = (
    "both servers over HTTP in one call on one card, vLLM first; the same seeded requests; vLLM with its "
    "defaults, where a row says tuned with compile_sizes 1 and so max-autotune; Wisp with "
    "--max-concurrent 256"
)
TUNED_S = 60.0  # a tuned start and its two measurements at least


class Comparison:
    """One call: vLLM, Wisp, and tuned vLLM, one after the other."""

    def __init__(self, measurement: Measurement, *, is_dry: bool, tests: tuple[str, ...] = ()) -> None:
        self.measured, self.clock = measurement, measurement.clock
        self.sizes, self.work, self.out = measurement.sizes, measurement.work, measurement.out
        self.is_dry, self.tests = is_dry, tests

    def run(self) -> None:
        """Prepare, then measure vLLM, Wisp, and tuned vLLM if time is left."""
        say, clock = self.clock.say, self.clock
        writing = self._prepare()
        with started(self._vllm(VLLM, 18100), self.out) as server:
            build_kernels(self.kernels, clock, is_dry=self.is_dry)
            self._measure(server, min(130.0, clock.left_s - 110))
        try:
            say(f"the checkpoint is written: status {writing.wait(max(1.0, clock.left_s - 60))}")
        except subprocess.TimeoutExpired:
            writing.kill()
            say("the checkpoint is not written in time: Wisp is left out")
            return
        with started(wisp(self._model("wisp"), self.sizes.device, 18200, self.kernels), self.out) as server:
            self._measure(server, 30.0)
        self._test()
        if clock.left_s < TUNED_S:
            say(f"no time for {TUNED}: {clock.left_s:.0f} s are left")
            return
        with started(self._vllm(TUNED, 18300, [1]), self.out) as server:
            if server.wait_ready(clock.left_s - 12):
                say(f"{TUNED} is ready after {server.age_s:.1f} s")
                self.measured.alone(server, repeats=3)
                self.measured.decode_alone(server)

    def _prepare(self) -> subprocess.Popen[bytes]:
        """Unpack, write config and tokenizer for vLLM, and begin to write the weights for Wisp."""
        from wisp_plan.presets import shape_config
        from wisp_runtime.bench.checkpoint import write_tokenizer

        writing = subprocess.Popen([sys.executable, "-c", WRITE, self.sizes.shape, str(self._model("wisp"))])
        if not self.is_dry:
            unpack_carried(self.work, self.kernels, self.clock)
        config = shape_config(self.sizes.shape)
        self._model("vllm").mkdir(parents=True, exist_ok=True)
        (self._model("vllm") / "config.json").write_text(json.dumps(config))
        write_tokenizer(self._model("vllm"), int(str(config["vocab_size"])))
        return writing

    @property
    def kernels(self) -> Path:
        """Folder of the compiled kernels."""
        return self.work / "kernels"

    def _model(self, name: str) -> Path:
        return self.work / name / self.sizes.shape

    def _vllm(self, name: str, port: int, compile_sizes: list[int] | None = None) -> Command:
        if self.is_dry:
            return stand_in(port, name=name)
        flags = ["--load-format", "dummy"]
        if compile_sizes:
            flags += ["--compilation-config", json.dumps({"compile_sizes": compile_sizes})]
        return vllm(self._model("vllm"), self.work, port, name=name, flags=flags)

    def _measure(self, server, ready_within_s: float) -> None:
        """Measure a server that is starting: alone, side by side, under load."""
        if not server.wait_ready(ready_within_s):
            return
        self.clock.say(f"{server.command.name} is ready after {server.age_s:.1f} s")
        self.measured.alone(server, repeats=5)
        self.measured.decode_alone(server)
        self.measured.streams(server)
        self.measured.arrivals(server)

    def _test(self) -> None:
        """Run tests of the GPU, if any were asked for."""
        if self.tests:
            limit_s = max(5.0, min(60.0, self.clock.left_s - 5))
            command = [
                "timeout",
                f"{limit_s:.0f}",
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:cacheprovider",
            ]
            done = subprocess.run(
                [*command, *self.tests], check=False, env=os.environ | {"WISP_KERNELS": str(self.kernels)}
            )
            self.clock.say(f"pytest ended with status {done.returncode}")


def unpack_carried(work: Path, kernels: Path, clock: Clock) -> None:
    """Unpack what pack.py and a build made, if it is there."""
    for name, folder in (("site", work), ("kernels", kernels)):
        if (archive := ROOT / f".peer/{name}.tar.xz").is_file():
            unpack(archive, folder)
            clock.say(f"unpacked {archive.name}")


def build_kernels(kernels: Path, clock: Clock, *, is_dry: bool) -> None:
    """Compile kernels that were not carried, while vLLM starts."""
    if is_dry:
        return
    build = [*CLI, "kernels", "build", "--arch", "sm_90a", "--jobs", "12", "--out", str(kernels)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    built = [line for line in done.stderr.splitlines() if line.endswith(" s")]
    clock.say(f"kernels: status {done.returncode}, {len(built)} compiled here")
    if done.returncode:
        print(done.stderr[-1000:], flush=True)


def arguments(description: str | None, limit_s: float) -> argparse.ArgumentParser:
    """Return the parser of the flags that both comparisons have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "peer-out")))
    parser.add_argument("--work", type=Path, default=Path("/tmp/wisp-peer"))
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--limit-s", type=float, default=limit_s)
    parser.add_argument("--dry-run", action="store_true")
    return parser


def prepare(asked: argparse.Namespace) -> None:
    """Make the folders, and have every process find our packages and vLLM's."""
    asked.out, asked.work = asked.out.absolute(), asked.work.absolute()
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.work.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT / "runtime"), str(ROOT / "operator")]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, str(asked.work / "site")])
    os.environ["PYTHONUNBUFFERED"] = "1"


def main() -> int:
    """Compare; return 0 if both servers were measured."""
    parser = arguments(__doc__, 285.0)
    parser.add_argument("--tests", default="", help="tests for pytest, after Wisp was measured")
    asked = parser.parse_args()
    prepare(asked)
    measurement = Measurement(
        "beside-vllm-served",
        NOTE,
        ["python", "tests/bench/peer/compare.py", "--out", "OUT"],
        DRY if asked.dry_run else Sizes(),
        Clock(asked.limit_s),
        asked.work,
        asked.out,
        asked.commit,
    )
    try:
        Comparison(measurement, is_dry=asked.dry_run, tests=tuple(asked.tests.split())).run()
    finally:
        measurement.clock.say("done")
        print("\n".join(table(measurement.rows)), flush=True)
    servers = {row["server"] for row in measurement.rows if row["metric"] in ("load", "served_gap_ms")}
    return 0 if servers >= {VLLM, "wisp"} else 1


if __name__ == "__main__":
    sys.exit(main())
