"""Divide answers with tool calls at random, walk grammars of calls, and time the parsers.

    python tests/bench/answers/tool_parsers.py --json tests/bench/records/tool-parsers-cuts.json

Each cut is one division of a hostile answer, whose parts must be those of the answer pushed at once; each
walk is a random answer that a grammar allows, whose calls must be valid by their schemas; each random text
must raise nothing. Ends with an error at the first that is not. Times: CPU microseconds a delta of four
characters, and a character of a megabyte in one call.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS / "runtime/support/markup"))
import valid_calls  # noqa: E402
from hostile_markup import check_order, division, hostile_answer, parse  # noqa: E402
from tool_answers import ANSWERS, TOOLS  # noqa: E402

from wisp_runtime.bench.record import make_record, write_record  # noqa: E402
from wisp_runtime.server.answers.parts import CallArguments  # noqa: E402
from wisp_runtime.server.answers.tools.registry import FORMATS  # noqa: E402

DIVISIONS, DELTA_CHARS = 4, 4
ALPHABET = "<|>[](){}=\"'\\/,:; \n\t\x00aé🏔\ud800tool_calparmen09.-+eE"


@dataclass(frozen=True)
class Row:
    """Figures of one format.

    Attributes:
        format: its name.
        figures: counts, seconds and microseconds by name.
    """

    format: str
    figures: dict[str, float]

    def to_dict(self) -> dict[str, object]:
        """Return the row as JSON of a record."""
        return {"metric": "tool_parser", "format": self.format} | self.figures


def cut(name: str, cuts: int, source: random.Random) -> int:
    """Compare divisions of hostile answers with the answers pushed at once; return how many had calls."""
    with_calls = 0
    for _ in range(cuts // DIVISIONS):
        raw = hostile_answer(source, name)
        parts = parse(name, [raw])
        check_order(parts)
        with_calls += any(isinstance(part, CallArguments) for part in parts)
        for _ in range(DIVISIONS):
            texts = division(raw, source)
            if parse(name, texts) != parts:
                raise SystemExit(f"{name}: other parts of {texts}")
    return with_calls * DIVISIONS


def push_random(name: str, texts: int, source: random.Random) -> None:
    """Push random characters; nothing may be raised."""
    for _ in range(texts):
        check_order(parse(name, ["".join(source.choices(ALPHABET, k=source.randrange(1, 400)))]))


def delta_us(name: str) -> float:
    """Return the mean time of a push, of the family's answers in deltas of a few characters."""
    raws = [answer.raw for answer in ANSWERS if answer.format == name] * 40
    pushes, begin = 0, time.process_time()
    for raw in raws:
        parser = FORMATS[name].parser(TOOLS)
        for start in range(0, len(raw), DELTA_CHARS):
            parser.push(raw[start : start + DELTA_CHARS])
            pushes += 1
        parser.finish()
    return (time.process_time() - begin) / pushes * 1e6


def megabyte_us(name: str) -> float:
    """Return the mean time of a character, of a megabyte of text in one call's arguments."""
    answer = max(
        (answer for answer in ANSWERS if answer.format == name), key=lambda answer: "a/b.py" in answer.raw
    )
    raw = answer.raw.replace("a/b.py", "words < and { \\\\n" * 65_536)
    parser, begin = FORMATS[name].parser(TOOLS), time.process_time()
    for char in raw:
        parser.push(char)
    parser.finish()
    return (time.process_time() - begin) / len(raw) * 1e6


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Run all formats."""
    for name in FORMATS:
        source, begin = random.Random(f"{options.seed}{name}"), time.perf_counter()
        with_calls = cut(name, options.cuts // len(FORMATS), source)
        push_random(name, options.texts // len(FORMATS), source)
        parsed_s = time.perf_counter() - begin
        walked, calls = valid_calls.walk(name, options.walks // len(FORMATS), source)
        figures = {
            "cuts": options.cuts // len(FORMATS) // DIVISIONS * DIVISIONS,
            "cuts_with_calls": with_calls,
            "random_texts": options.texts // len(FORMATS),
            "seconds": round(parsed_s, 1),
            "walks": walked,
            "walked_calls": calls,
            "delta_us": delta_us(name),
            "megabyte_char_us": megabyte_us(name),
            "seed": options.seed,
        }
        print(name, figures, file=sys.stderr)
        yield Row(name, figures)


def main(arguments: Sequence[str]) -> None:
    """Run, print and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuts", type=int, default=100_080)
    parser.add_argument("--texts", type=int, default=60_000)
    parser.add_argument("--walks", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    command = ["python", "tests/bench/answers/tool_parsers.py", *arguments]
    record = make_record("tool-parsers-cuts", list(rows(options)), device="cpu", command=command, commit=None)
    if options.json:
        write_record(options.json, record)


if __name__ == "__main__":
    main(sys.argv[1:])
