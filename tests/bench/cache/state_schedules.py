"""Random schedules of the engine with recurrent states: wrong tokens and leaked slots, counted.

    python tests/bench/cache/state_schedules.py --schedules 100000

Writes ``state-schedules.json`` to ``--record`` (default: the folder of records). A schedule is a function of
its number, so one that fails is run again by ``--first NUMBER --schedules 1``.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / "runtime" / name) for name in ("support", "engine/hybrids")]
from random_schedules import Tally, run_schedules

from wisp_runtime.bench.record import make_record, write_record

RECORDS = Path(__file__).parents[1] / "records"
_AT_ONCE = 500


class Row:
    """Row of the record."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def to_dict(self) -> dict[str, object]:
        """Return the counts."""
        return {"metric": "schedules with recurrent states", **vars(self._tally)}


def main() -> None:
    """Run the schedules, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--record", type=Path, default=RECORDS)
    options = parser.parse_args()
    starts = range(options.first, options.first + options.schedules, _AT_ONCE)
    counts = [min(_AT_ONCE, options.first + options.schedules - start) for start in starts]
    total = Tally()
    with ProcessPoolExecutor(options.processes) as pool:
        for number, tally in enumerate(pool.map(partial(run_schedules), starts, counts), start=1):
            total.add(tally)
            print(f"{number * _AT_ONCE} schedules: {total}", file=sys.stderr, flush=True)
    record = make_record("state-schedules", [Row(total)], device="cpu", command=sys.argv, commit=None)
    write_record(options.record / "state-schedules.json", record)


if __name__ == "__main__":
    main()
