"""Try many cases of Schemathesis on the OpenAPI document of the server around a scripted model.

    make test-clients PYTEST_ARGS=--collect-only     # installs Schemathesis
    python tests/bench/clients/schema_cases.py --schemathesis ~/.cache/wisp/clients-*/bin/schemathesis \
        --json tests/bench/records/openapi-cases.json

Groups of paths run beside one another, each against a server of its own: Schemathesis with two workers in one
process dies of CPython's parser. The exit status is 1 if a case found something.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx

from wisp_runtime.bench.record import make_record, write_record

CLIENTS = Path(__file__).resolve().parents[2] / "clients"
GROUPS = {
    "chat": r"^/v1/(chat|models)",
    "responses": r"^/v1/responses",
    "messages": r"^/v1/messages",
    "completions": r"^/v1/completions",
    "the others": r"(embeddings|score|rerank|tokenize)$",
}
SERVED = re.compile(r'wisp_http_responses_total\{.*path="([^"]+)",status="(\d+)"\} (\d+)')
COUNTED = re.compile(r"Test cases:\n  (\d+) generated")
DEFAULT_EXAMPLES = 2300


@dataclass(frozen=True)
class Row:
    """Outcome of one group.

    Attributes:
        group: its name.
        cases: requests that were checked.
        exit_status: 0 if nothing was found.
        statuses: responses by status, of each path.
        seed: Schemathesis' seed.
    """

    group: str
    cases: int
    exit_status: int
    statuses: Mapping[str, Mapping[str, int]]
    seed: int

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def _ran(name: str, options: argparse.Namespace) -> Row:
    """Run a group against a server of its own, and keep Schemathesis' output."""
    server = [sys.executable, str(CLIENTS / "scripted_server.py")]
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["hermes"]
            done = _schemathesis(url, GROUPS[name], options)
            metrics = httpx.get(f"{url}/metrics").text
        finally:
            process.terminate()
    (options.keep / f"{name}.txt").write_text(done.stdout)
    counted = COUNTED.search(done.stdout)
    assert counted, done.stdout[-4000:]
    statuses: dict[str, dict[str, int]] = {}
    for path, status, count in SERVED.findall(metrics):
        statuses.setdefault(path, {})[status] = int(count)
    return Row(name, int(counted[1]), done.returncode, statuses, options.seed)


def _schemathesis(url: str, paths: str, options: argparse.Namespace) -> subprocess.CompletedProcess[str]:
    command = [
        *(options.schemathesis, "--config-file", str(CLIENTS / "schemathesis.toml")),
        *("run", f"{url}/openapi.json", "--include-path-regex", paths, "--no-color"),
        *("--max-examples", str(options.examples), "--seed", str(options.seed)),
        *("--generation-database", "none", "--suppress-health-check", "all"),
        *("--exclude-checks", "positive_data_acceptance", "--phases", "coverage,fuzzing,stateful"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder, check=False
        )


def main(arguments: Sequence[str]) -> None:
    """Run all groups, print and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schemathesis", required=True)
    parser.add_argument("--examples", type=int, default=DEFAULT_EXAMPLES)
    parser.add_argument("--group", choices=GROUPS, nargs="+", default=list(GROUPS))
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with ThreadPoolExecutor(len(options.group)) as pool:
        rows = list(pool.map(lambda name: _ran(name, options), options.group))
    for row in rows:
        print(row, file=sys.stderr)
    command = ["python", "tests/bench/clients/schema_cases.py", *arguments]
    if options.json:
        write_record(
            options.json, make_record("openapi-cases", rows, device="cpu", command=command, commit=None)
        )
    sys.exit(any(row.exit_status for row in rows))


if __name__ == "__main__":
    main(sys.argv[1:])
