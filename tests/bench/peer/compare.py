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
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from servers import HOST, MODEL, ROOT, Server, stand_in, started, vllm, wisp

SHAPE, VLLM, TUNED = "llama-3-8b", "vllm-0.26.0", "vllm-0.26.0 tuned"
WRITE = "import sys; from pathlib import Path; from wisp_runtime.bench.checkpoint import write_checkpoint; "
WRITE += "write_checkpoint(sys.argv[1], Path(sys.argv[2]), lambda done, total: None)"
CLI = [sys.executable, "-c", "from wisp_runtime.cli.main import main; main()"]
NAME = {"bf16": "beside-vllm-served"}  # of a record; others are named after their format
GROUPS = {
    "fp8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "int8": ("int-quantized", {"num_bits": 8, "type": "int", "strategy": "channel"}),
    "int4": ("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}),
}
TUNED_S = 60.0  # a tuned start and its two measurements at least


@dataclass(frozen=True)
class Sizes:
    """What is measured of each server."""

    shape: str = SHAPE
    device: str = "cuda"
    alone: str = "128,512,2048,7900"
    clients: str = "1,8,32,64"
    prompt: int = 512
    tokens: int = 256
    rates: str = "5,15,30,40"
    seconds: float = 10.0
    burst: str = "400"
    lengths: tuple[str, ...] = ()
    vocab: int = 100_000


DRY = Sizes(
    "toy",
    "cpu",
    "16,32",
    "1,2",
    16,
    24,
    "5,10",
    1.0,
    "12",
    ("--prompt-tokens", "20", "--output-tokens", "8"),
    256,
)


@dataclass
class Comparison:
    """One call: its folders, its limit, and the rows so far."""

    sizes: Sizes
    work: Path
    out: Path
    commit: str
    limit_s: float
    is_dry: bool
    quantization: str = "bf16"
    tests: tuple[str, ...] = ()
    rows: list[dict[str, Any]] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds until the limit."""
        return self.limit_s - (time.monotonic() - self.began_s)

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        print(f"[{time.monotonic() - self.began_s:6.1f} s] {text}", flush=True)

    def run(self) -> None:
        """Prepare, then measure vLLM, Wisp, and tuned vLLM if time is left."""
        writing = self._prepare()
        with started(self._vllm(VLLM, 18100), self.out) as server:
            self._build_kernels()
            self._measure(server, min(130.0, self.left_s - 110))
        try:
            self.say(f"the checkpoint is written: status {writing.wait(max(1.0, self.left_s - 60))}")
        except subprocess.TimeoutExpired:
            writing.kill()
            self.say("the checkpoint is not written in time: Wisp is left out")
            return
        asked = "auto" if self.quantization == "bf16" else self.quantization
        ours = wisp(self._model("wisp"), self.sizes.device, 18200, self._kernels, asked)
        with started(ours, self.out) as server:
            self._measure(server, 30.0)
        self._test()
        if self.quantization != "bf16":
            return
        if self.left_s < TUNED_S:
            self.say(f"no time for {TUNED}: {self.left_s:.0f} s are left")
            return
        with started(self._vllm(TUNED, 18300, [1]), self.out) as server:
            if server.wait_ready(self.left_s - 12):
                self.say(f"{TUNED} is ready after {time.monotonic() - server.began_s:.1f} s")
                self._alone(server, repeats=3)
        self.keep()

    def _prepare(self) -> subprocess.Popen[bytes]:
        """Unpack, write config and tokenizer for vLLM, and begin to write the weights for Wisp."""
        from wisp_plan.presets import shape_config
        from wisp_runtime.bench.checkpoint import write_tokenizer

        writing = subprocess.Popen([sys.executable, "-c", WRITE, self.sizes.shape, str(self._model("wisp"))])
        for name, folder in (("site", self.work), ("kernels", self._kernels)):
            if (archive := ROOT / f".peer/{name}.tar.xz").is_file() and not self.is_dry:
                unpack(archive, folder)
                self.say(f"unpacked {archive.name}")
        config = shape_config(self.sizes.shape)
        if self.quantization != "bf16":
            config["quantization_config"] = quantization_config(self.quantization)
        self._model("vllm").mkdir(parents=True, exist_ok=True)
        (self._model("vllm") / "config.json").write_text(json.dumps(config))
        write_tokenizer(self._model("vllm"), int(str(config["vocab_size"])))
        return writing

    def _build_kernels(self) -> None:
        """Compile kernels that were not carried, while vLLM starts."""
        if self.is_dry:
            return
        build = [*CLI, "kernels", "build", "--arch", "sm_90a", "--jobs", "12", "--out", str(self._kernels)]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        built = [line for line in done.stderr.splitlines() if line.endswith(" s")]
        self.say(f"kernels: status {done.returncode}, {len(built)} compiled here")
        if done.returncode:
            print(done.stderr[-1000:], flush=True)

    @property
    def _kernels(self) -> Path:
        return self.work / "kernels"

    def _model(self, name: str) -> Path:
        return self.work / name / self.sizes.shape

    def _vllm(self, name: str, port: int, compile_sizes: list[int] | None = None):
        if self.is_dry:
            return stand_in(port, name=name)
        return vllm(self._model("vllm"), self.work, port, name=name, compile_sizes=compile_sizes)

    def _measure(self, server: Server, ready_within_s: float) -> None:
        """Measure a server that is starting: alone, side by side, under load."""
        if not server.wait_ready(ready_within_s):
            return
        self.say(f"{server.command.name} is ready after {time.monotonic() - server.began_s:.1f} s")
        sizes = self.sizes
        self._alone(server, repeats=5)
        self._served(server)
        if not sizes.rates:
            return
        load = [
            "--rates",
            sizes.rates,
            "--seconds",
            str(sizes.seconds),
            "--burst",
            sizes.burst,
            *sizes.lengths,
        ]
        self._load(server, load, 90.0)

    def _test(self) -> None:
        """Run tests of the GPU, if any were asked for."""
        if self.tests:
            limit_s = max(5.0, min(60.0, self.left_s - 5))
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
                [*command, *self.tests], check=False, env=os.environ | {"WISP_KERNELS": str(self._kernels)}
            )
            self.say(f"pytest ended with status {done.returncode}")

    def _alone(self, server: Server, repeats: int) -> None:
        sizes = self.sizes
        first = ["--alone", sizes.alone, "--output-tokens", "8", "--repeats", str(repeats)]
        self._load(server, first, 30.0, "first_token_alone")
        decode = ["--alone", str(sizes.prompt), "--output-tokens", str(sizes.tokens), "--repeats", "3"]
        self._load(server, decode, 30.0, "decode_alone")

    def _load(self, server: Server, flags: list[str], limit_s: float, metric: str = "load") -> None:
        at = [
            "--url",
            f"http://{HOST}:{server.command.port}",
            "--model",
            MODEL,
            "--vocab",
            str(self.sizes.vocab),
        ]
        for row in self._bench("load", [*at, "--server", server.command.name, *flags], limit_s):
            self.rows.append({**row, "metric": metric, "shape": self.sizes.shape})
        self.keep()

    def _served(self, server: Server) -> None:
        """Measure the gap between tokens of concurrent streams in steady state."""
        from wisp_runtime.bench.serving.start import row_maker

        sizes, state = self.sizes, server.state()
        strategy = row_maker(sizes.shape, sizes.device, state)
        flags = [
            "--url",
            f"{HOST}:{server.command.port}/{MODEL}",
            "--shape",
            sizes.shape,
            "--clients",
            sizes.clients,
        ]
        flags += ["--prompt", str(sizes.prompt), "--tokens", str(sizes.tokens), "--device", sizes.device]
        for row in self._bench("serving", flags, 60.0):
            is_ours = bool(state.get("kernels"))
            made = strategy("path", 0.0, batch=row["batch"], context=row["context"])
            path = made.path if is_ours else server.command.name
            self.rows.append({**row, "path": path, "server": server.command.name})
        self.keep()

    def _bench(self, benchmark: str, flags: list[str], limit_s: float) -> Iterator[dict[str, Any]]:
        """Run a benchmark command, its lines printed as they come, and yield the rows of its record."""
        record = self.work / "record.json"
        record.unlink(missing_ok=True)
        limit_s = min(limit_s, self.left_s)
        command = [
            "timeout",
            f"{max(1.0, limit_s):.0f}",
            *CLI,
            "bench",
            benchmark,
            *flags,
            "--json",
            str(record),
        ]
        done = subprocess.run(command, check=False)
        if done.returncode:
            self.say(f"bench {benchmark} ended with status {done.returncode}")
        if record.is_file():
            yield from json.loads(record.read_text())["rows"]

    def keep(self) -> None:
        """Write the record of all rows so far."""
        from wisp_runtime.bench.record import make_record, write_record

        name = NAME.get(self.quantization, f"beside-vllm-{self.quantization}")
        command = ["python", "tests/bench/peer/compare.py", "--out", "OUT"]
        if self.quantization != "bf16":
            command += ["--quantization", self.quantization]
        made = make_record(name, [Kept(row) for row in self.rows], device=self.sizes.device,
                           command=command, commit=self.commit)  # fmt: skip
        made["note"] = (
            "both servers over HTTP in one call on one card, vLLM first; the same seeded requests; vLLM with "
            "its defaults, where a row says tuned with compile_sizes 1 and so max-autotune; Wisp with "
            "--max-concurrent 256"
        )
        if self.quantization != "bf16":
            made["note"] += (
                f"; {self.quantization}: vLLM with random weights in compressed-tensors' arrangement, Wisp "
                "quantizing a bf16 checkpoint while it loads"
            )
        write_record(self.out / f"{name}.json", made)


def quantization_config(name: str) -> dict[str, Any]:
    """Return the section of a ``config.json`` whose projections are in a format of compressed-tensors."""
    arrangement, weights = GROUPS[name]
    tokens = {"type": weights["type"], "num_bits": 8, "strategy": "token", "dynamic": True, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": {**weights, "symmetric": True, "dynamic": False},
        "input_activations": None if weights["num_bits"] == 4 else tokens,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": arrangement,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


@dataclass(frozen=True)
class Kept:
    """A row that is JSON already."""

    row: dict[str, Any]

    def to_dict(self) -> dict[str, object]:
        """Return it."""
        return self.row


def unpack(archive: Path, folder: Path) -> None:
    """Unpack with tar where it knows xz, else with Python."""
    folder.mkdir(parents=True, exist_ok=True)
    if (
        shutil.which("xz")
        and not subprocess.run(["tar", "-C", folder, "-xJf", archive], check=False).returncode
    ):
        return
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the results once more, a line each, as the end of the output."""
    for row in rows:
        name = f"{row.get('server', row.get('path')):20} {row['metric']:22}"
        if "arrivals" in row:
            first, each = row.get("first_token_ms") or {}, row.get("time_per_token_ms") or {}
            spreads = " ".join(
                f"{key} {first.get(key)}/{each.get(key)}" for key in ("mean", "p50", "p90", "p99")
            )
            rate = f"{row['output_tokens_per_s']} tok/s"
            yield f"{name} {row['arrivals']:20} {row['failed']} failed  {spreads}  {rate}"
        else:
            yield f"{name} batch {row['batch']:<4} median {row['value']} mean {row.get('mean', '')}"


def main() -> int:
    """Compare; return 0 if both servers were measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "peer-out")))
    parser.add_argument("--work", type=Path, default=Path("/tmp/wisp-peer"))
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--limit-s", type=float, default=285.0)
    parser.add_argument(
        "--quantization", choices=["bf16", *GROUPS], default="bf16", help="format of the weights"
    )
    parser.add_argument("--tests", default="", help="tests for pytest, after Wisp was measured")
    parser.add_argument("--dry-run", action="store_true")
    asked = parser.parse_args()
    asked.out, asked.work = asked.out.absolute(), asked.work.absolute()
    asked.out.mkdir(parents=True, exist_ok=True)
    asked.work.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT / "runtime"), str(ROOT / "operator")]
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, str(asked.work / "site")])
    os.environ["PYTHONUNBUFFERED"] = "1"
    sizes = DRY if asked.dry_run else Sizes()
    tests = tuple(asked.tests.split())
    if asked.quantization != "bf16":
        sizes = replace(sizes, clients="1,8,16,32,64", rates="")
    comparison = Comparison(
        sizes, asked.work, asked.out, asked.commit, asked.limit_s, asked.dry_run, asked.quantization, tests
    )
    try:
        comparison.run()
    finally:
        comparison.say("done")
        print("\n".join(table(comparison.rows)), flush=True)
    measured = {row["server"] for row in comparison.rows if row["metric"] in ("load", "served_gap_ms")}
    return 0 if measured >= {VLLM, "wisp"} else 1


if __name__ == "__main__":
    sys.exit(main())
