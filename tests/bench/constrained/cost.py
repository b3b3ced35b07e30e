"""Cost of grammars: of a mask, and of a step of the engine beside the same step without a grammar.

    python tests/bench/constrained/cost.py                                    the example model on the CPU
    python tests/bench/constrained/cost.py --vocabulary qwen.tiktoken         masks of another vocabulary too
    python tests/bench/constrained/cost.py --device cuda --shape qwen3-8b --tokenizer qwen.tiktoken

Steps: answers with a grammar and without take turns in the engine's loop, so that what else the machine does
slows both; the time of a step is the gap between two of its outputs, and its CPU time that of all threads in
it, which a busy machine distorts less. All answers are greedy: a step without a grammar does least then.
Masks: answers of noise to typical schemas: of one answer, and of 32 at a time, in CPU time and in time that
passes (threads share the work; before each step they sleep, as they do in the engine). A vocabulary file
is a tokenizer.json, or lines of a token in base64 and its rank. Where the weights are random, so is the
vocabulary, unless --tokenizer names one: masks of random words, which share no stems, are slow more often.
A benchmark, not a test: it asserts no time.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from wisp_plan.presets import SHAPES
from wisp_runtime.bench.record import shown_command
from wisp_runtime.bench.target import Target, TargetOptions, open_target
from wisp_runtime.engine.constrained.bits import words_of
from wisp_runtime.engine.constrained.compiler import ANSWERS_A_LEXER, Compiled, GrammarCompiler, Lexer
from wisp_runtime.engine.constrained.grammar import executor_threads, fill_rows
from wisp_runtime.engine.constrained.limits import parser_limits
from wisp_runtime.engine.constrained.vocabulary import Vocabulary, read_vocabulary
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.transport.messages import SamplingParams, Shutdown, Submit
from wisp_runtime.server.structured.fields import StructuredFields
from wisp_runtime.server.structured.structure import structure_of

_PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "role": {"enum": ["admin", "user", "guest"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
        "address": {"type": ["string", "null"], "maxLength": 60},
    },
    "required": ["name", "age", "role", "tags", "address"],
    "additionalProperties": False,
}
_PATTERNS = {
    "id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{6}$"},
    "mail": {"type": "string", "format": "email"},
    "at": {"type": "string", "format": "date-time"},
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "json_object": {"response_format": {"type": "json_object"}},
    "person": {"guided_json": _PERSON},
    "people": {"guided_json": {"type": "array", "items": _PERSON, "minItems": 1000}},
    "100 properties": {
        "guided_json": {
            "type": "object",
            "properties": {f"field_{number}": {"type": "string"} for number in range(100)},
            "additionalProperties": False,
        }
    },
    "patterns": {"guided_json": {"type": "object", "properties": _PATTERNS, "required": list(_PATTERNS)}},
    "regex": {"guided_regex": r"\d{4}-\d{2}-\d{2} (mon|tue|wed): [^\n]{10,200}"},
    "choice": {"guided_choice": [f"label number {number}" for number in range(500)]},
}
_WARM_UP_GAPS = 4
_MASK_STEPS = 200
_STEP_S = 0.003


def grammar_of(fields: dict[str, Any]) -> str:
    """Return the grammar of a request with these fields."""
    structure = structure_of(StructuredFields.model_validate(fields))
    assert structure is not None
    return structure.grammar


def made_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary like a model's: bytes, words after a space or not, numbers, signs, fragments."""
    source = random.Random(0)
    words = (Path(__file__).parents[1] / "quality/english.txt").read_text().split()
    tokens = dict.fromkeys([b"<end>", *(bytes([byte]) for byte in range(256))])
    tokens |= dict.fromkeys(text.encode() for word in words for text in (word, f" {word}"))
    tokens |= dict.fromkeys(str(number).encode() for number in range(1000))
    tokens |= dict.fromkeys(b" " * count for count in range(1, 64))
    signs = ['"', '":', '": "', '",', '"}', "},", "]", "[]", "{}", "\n", ", ", '", "', "\\n", "\\u"]
    tokens |= dict.fromkeys(sign.encode() for sign in signs)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    while len(tokens) < size:
        fragment = "".join(source.choices(letters, range(26, 0, -1), k=source.randint(2, 9)))
        tokens[source.choice((fragment, f" {fragment}", fragment.title())).encode()] = None
    return _of_bytes(list(tokens)[:size])


def _of_bytes(tokens: list[bytes]) -> Vocabulary:
    """Return a vocabulary whose first token is the end; each byte is a token, too."""
    places = {token: place for place, token in enumerate(tokens)}

    class Tokens:
        """What llguidance reads of a tokenizer; it encodes what a grammar forces."""

        is_tokenizer_wrapper, bos_token_id, eos_token_id, special_token_ids = True, None, 0, (0,)

        def __call__(self, text: str | bytes) -> list[int]:
            return [places[bytes([byte])] for byte in (text.encode() if isinstance(text, str) else text)]

    source = Tokens()
    source.tokens = tokens  # type: ignore[attr-defined]
    return Vocabulary(LLTokenizer(source, n_vocab=len(tokens)), np.array([0]))  # type: ignore[arg-type]


def vocabulary_of(file: Path) -> Vocabulary:
    """Read a vocabulary: a folder or GGUF file of a model, or ``.tiktoken`` lines."""
    if file.suffix != ".tiktoken":
        content = json.loads((file / "config.json").read_text())
        return read_vocabulary(file, content["vocab_size"], (content["eos_token_id"],))
    lines = [line.split() for line in file.read_text().splitlines() if line]
    return _of_bytes([b"<end>", *(base64.b64decode(token) for token, _ in lines)])


def measure_masks(name: str, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Time the masks of 32 answers of noise to each grammar."""
    rows = []
    for grammar, fields in GRAMMARS.items():
        began_s = time.process_time()
        compiled = compiled_for(1, vocabulary, grammar_of(fields))
        compiled_s = time.process_time() - began_s
        alone, _ = _mask_times(compiled, 1)
        together, passed = _mask_times(compiled_for(32, vocabulary, grammar_of(fields)), 32)
        row: dict[str, Any] = {"metric": "mask, us of CPU time", "of": grammar, "vocabulary": name}
        row |= {"tokens": vocabulary.size}
        row |= {"value": round(statistics.median(alone), 1), "mean": round(statistics.mean(alone), 1)}
        row |= {"p99": round(statistics.quantiles(alone, n=100)[98], 1), "max": round(max(alone), 1)}
        row |= {
            "step_of_32": round(statistics.median(together), 1),
            "step_of_32_max": round(max(together), 1),
            "step_of_32_passes": round(statistics.median(passed), 1),
            "step_of_32_passes_p90": round(statistics.quantiles(passed, n=10)[8], 1),
        }
        rows.append(row | {"masks": len(alone), "compile_ms": round(1e3 * compiled_s, 2)})
        print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def compiled_for(answers: int, vocabulary: Vocabulary, text: str) -> Compiled:
    """Compile a grammar as often as the engine does for so many answers at a time."""
    lexers = []
    for _ in range(max(1, min(answers // ANSWERS_A_LEXER, executor_threads()))):
        matcher = LLMatcher(vocabulary.tokenizer, text, log_level=0, limits=parser_limits())
        assert not matcher.is_error(), matcher.get_error()
        lexers.append(Lexer(matcher))
    return Compiled(vocabulary, lexers)


def _mask_times(compiled: Compiled, batch: int) -> tuple[list[float], list[float]]:
    """Return the microseconds in which each step parses its tokens and computes its masks: CPU time, time."""
    vocabulary, noise = compiled.vocabulary, np.random.default_rng(0)
    assert vocabulary is not None
    times, passed = list[float](), list[float]()
    words = np.zeros((batch, words_of(vocabulary.size)), np.uint32)
    grammars = [compiled.answer() for _ in range(batch)]
    for _ in range(_MASK_STEPS):
        time.sleep(_STEP_S)
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        fill_rows([(grammar, index) for index, grammar in enumerate(grammars)], words)
        passed.append(1e6 * (time.perf_counter() - began_s))
        times.append(1e6 * (time.process_time() - began_cpu_s))
        for index, row in enumerate(words):
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            token = int(noise.choice(allowed))
            if token in vocabulary.end_ids:
                grammars[index] = compiled.answer()
            else:
                grammars[index].advance(token)
    return times, passed


class TimedChannel:
    """The server's end of the engine's loop: submits at once, and notes when each step's output came."""

    def __init__(self, requests: list[Submit]) -> None:
        self._inbox, self._open = list(requests), len(requests)
        self.times: list[tuple[float, float]] = []

    def receive(self, *, waits: bool) -> list[Any]:
        """Return the requests, then nothing until all have ended."""
        messages, self._inbox = self._inbox, []
        return messages or ([] if self._open else [Shutdown()])

    def send(self, message: Any) -> None:
        """Note time and CPU time of a step in which every sequence got a token."""
        for event in message.events:
            assert event.finish in (None, "length"), event
            self._open -= event.finish is not None
        if sum(event.token is not None for event in message.events) == message.load.running + sum(
            event.finish is not None for event in message.events
        ):
            self.times.append((time.perf_counter(), time.process_time()))


def measure_steps(
    target: Target, compiler: GrammarCompiler, batch: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Time steps of ``batch`` answers, with and without a grammar in turn."""
    gaps: dict[str, list[tuple[float, float]]] = {"plain": [], "constrained": []}
    grammar = grammar_of(GRAMMARS["people"])
    for number in range(options.rounds + 1):
        for case in gaps:
            source = random.Random(number)
            requests = [
                Submit(
                    f"{case}-{number}-{index}",
                    tuple(source.choices(range(100, 8000), k=options.prompt)),
                    options.tokens,
                    SamplingParams(temperature=0.0),
                    ignore_eos=True,
                    constraint=grammar if case == "constrained" else None,
                )
                for index in range(batch)
            ]
            channel = TimedChannel(requests)
            run(channel, target.scheduler(), target.runner, compiler=compiler)
            if number:  # the first round compiles, loads and captures
                steps = list(pairwise(channel.times))[_WARM_UP_GAPS:]
                gaps[case] += [(after[0] - before[0], after[1] - before[1]) for before, after in steps]
    plain, constrained = ([1e3 * wall for wall, _ in gaps[case]] for case in gaps)
    plain_cpu, constrained_cpu = ([1e3 * cpu for _, cpu in gaps[case]] for case in gaps)
    row = {"metric": "step with a grammar over one without", "batch": batch, "context": options.prompt}
    row |= {"value": round(statistics.median(constrained) / statistics.median(plain), 4)}
    row |= {"of_cpu_time": round(statistics.median(constrained_cpu) / statistics.median(plain_cpu), 4)}
    row |= {"of_mean_cpu_time": round(statistics.mean(constrained_cpu) / statistics.mean(plain_cpu), 4)}
    row |= {
        "plain_ms": round(statistics.median(plain), 3),
        "constrained_ms": round(statistics.median(constrained), 3),
    }
    row |= {"plain_cpu_ms": round(statistics.median(plain_cpu), 3)}
    row |= {"constrained_cpu_ms": round(statistics.median(constrained_cpu), 3)}
    row |= {"gaps": len(plain), "tokens": target.spec.vocab}
    print(json.dumps(row), file=sys.stderr)
    return row


def main() -> None:
    """Read the command line, measure, and write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--shape", help="a named shape (random weights) or a folder; default: the example model"
    )
    parser.add_argument("--vocabulary", type=Path, action="append", default=[], help="masks of this one too")
    parser.add_argument("--tokenizer", type=Path, help="vocabulary of random weights")
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path, default=Path(__file__).parents[1] / "records/constrained.json")
    options = parser.parse_args()
    shape = options.shape
    if shape is None:
        from wisp_runtime.convert.example import example_model

        shape = str(example_model())
    batches = [int(batch) for batch in options.batch.split(",")]
    context = options.prompt + options.tokens + 16
    target = open_target(
        TargetOptions(shape, options.device, max(batches), context, kv_tokens=max(batches) * (context + 64))
    )
    is_random = shape in SHAPES
    source = options.tokenizer or (None if is_random else Path(shape))
    vocabulary = made_vocabulary(target.spec.vocab) if source is None else vocabulary_of(source)
    compiler = GrammarCompiler(lambda: vocabulary)
    load = os.getloadavg()[0]
    rows = [measure_steps(target, compiler, batch, options) for batch in batches]
    rows += measure_masks("made" if source is None else source.name, vocabulary)
    for file in options.vocabulary:
        rows += measure_masks(file.stem, vocabulary_of(file))
    revision = ["git", "rev-parse", "--short", "HEAD"]
    commit = (
        os.environ.get("COMMIT")
        or subprocess.run(revision, capture_output=True, text=True, check=False).stdout.strip()
    )
    content = {
        "name": options.record.stem,
        "commit": commit,
        "machine": f"{platform.machine()}, {os.cpu_count()} threads, load {load:.1f} at the start",
        "gpu": target.gpu,
        "python": platform.python_version(),
        "command": shown_command(["python", "tests/bench/constrained/cost.py", *sys.argv[1:]]),
        "rows": rows,
    }
    content = {name: value for name, value in content.items() if value is not None}
    options.record.write_text(json.dumps(content, indent=1) + "\n")
    print(options.record)


if __name__ == "__main__":
    main()
