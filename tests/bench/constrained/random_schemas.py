"""Random JSON schemas, and the answers of random logits that are held to them: each parses and validates.

    python tests/bench/constrained/random_schemas.py --count 10000

Schemas use what is supported: objects, arrays, strings with patterns and formats, bounded numbers, enums,
``$ref``, ``anyOf``, ``oneOf`` of disjoint branches, ``allOf``. Each goes the way of a request: to a grammar,
through the server's check, then through the engine's loop, 32 at a time, with logits that are noise, by a
byte-level tokenizer whose tokens span several signs of JSON. ``jsonschema`` validates the answers. Writes
records/structured-schemas.json; exits 1 if an answer that ended does not validate.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from jsonschema import Draft202012Validator, ValidationError
from schema_maker import SchemaMaker
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from wisp_plan.memory.cache import one_pool
from wisp_plan.spec.attention import AttentionSpec
from wisp_plan.spec.model import dense_decoder
from wisp_plan.spec.rope import RopeSpec
from wisp_runtime.batch import Batch
from wisp_runtime.bench.record import shown_command
from wisp_runtime.engine.constrained.compiler import GrammarCompiler
from wisp_runtime.engine.constrained.limits import why_refused
from wisp_runtime.engine.constrained.vocabulary import Vocabulary, read_vocabulary
from wisp_runtime.engine.execution.cpu_runner import CpuRunner
from wisp_runtime.engine.loop import run
from wisp_runtime.engine.scheduling.plan import Limits
from wisp_runtime.engine.scheduling.scheduler import Scheduler
from wisp_runtime.engine.transport.messages import SamplingParams, Shutdown, Submit
from wisp_runtime.layers.cache import ModelCache, allocate_blocks
from wisp_runtime.models.model import Output
from wisp_runtime.ops.registry import open_device
from wisp_runtime.server.structured.fields import StructuredFields
from wisp_runtime.server.structured.structure import structure_of

HERE = Path(__file__).parent
RECORD = HERE.parent / "records/structured-schemas.json"
VOCAB, BATCH, MAX_TOKENS = 800, 32, 600


def write_tokenizer(folder: Path) -> Path:
    """Write a byte-level tokenizer that was trained on English and on JSON; token 0 is the end."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    values = (
        {"name": "some text", "id": n, "items": [n, 2.5, {"a": None, "b": True}], "x-y": "é"}
        for n in range(200)
    )
    lines = [*(HERE.parent / "quality/english.txt").read_text().splitlines(), *map(json.dumps, values)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[AddedToken("<end>", special=True)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class Noise:
    """A model whose logits are noise; the longer a text is, the likelier are signs that end something."""

    def __init__(self, vocabulary: Vocabulary, seed: int) -> None:
        self.spec = dense_decoder(
            "Noise", "noise", layers=1, hidden=8, inner=8, vocab=VOCAB, max_context=MAX_TOKENS + 8,
            attention=AttentionSpec(1, 1, 8, RopeSpec()), norm_eps=1e-5, eos_token_ids=(0,),
        )  # fmt: skip
        texts = [vocabulary.tokenizer.decode_bytes([token]) for token in range(VOCAB)]
        urges = [
            2 if token == 0 or text[:1] in b"]}" else text[:1] == b'"' for token, text in enumerate(texts)
        ]
        self.closers = np.array(urges, np.float32)
        self.random = np.random.default_rng(seed)

    def forward(self, batch: Batch, _cache: ModelCache) -> Output:
        """Return logits ``[R, V]`` for the rows that want some."""
        rows = np.searchsorted(batch.query_starts, batch.logit_rows, side="right") - 1
        noise = self.random.standard_normal((len(rows), VOCAB), np.float32) * 2
        urge = np.minimum(batch.context_lengths[rows] * 0.05, 14).astype(np.float32)
        return Output(noise + urge[:, None] * self.closers)


class _Channel:
    """The server's end: sends the requests, keeps tokens and ends."""

    def __init__(self, requests: list[Submit]) -> None:
        self.inbox, self.open = list(requests), len(requests)
        self.tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
        self.ends: dict[str, tuple[str, str]] = {}

    def receive(self, *, waits: bool) -> list[Any]:
        messages, self.inbox = self.inbox, []
        return messages or ([Shutdown()] if len(self.ends) == self.open else [])

    def send(self, message: Any) -> None:
        for event in message.events:
            if event.token:
                self.tokens[event.request_id].append(event.token)
            if event.finish:
                self.ends[event.request_id] = event.finish, event.message


class Answers:
    """Engine that answers schemas with noise."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.vocabulary = read_vocabulary(write_tokenizer(folder), VOCAB, (0,))
        self.model, self.ops = Noise(self.vocabulary, seed), open_device("cpu", threads=1).ops
        self.compiler = GrammarCompiler(lambda: self.vocabulary)

    def of(self, grammars: dict[str, str]) -> dict[str, tuple[str, str, str]]:
        """Return text, finish and message of an answer to each grammar."""
        blocks = BATCH * (MAX_TOKENS // 16 + 2) // 2  # half of what all could need: some are preempted
        cache = allocate_blocks(self.model.spec, self.ops, blocks=blocks, block_tokens=16)
        limits = Limits(one_pool(blocks, 16), 256, BATCH, MAX_TOKENS + 8, VOCAB, frozenset({0}))
        requests = [
            Submit(
                name, (5, 6, 7), MAX_TOKENS, SamplingParams(temperature=1.0, seed=number), constraint=grammar
            )
            for number, (name, grammar) in enumerate(grammars.items())
        ]
        channel = _Channel(requests)
        run(channel, Scheduler(limits), CpuRunner(self.model, cache, self.ops.sample), compiler=self.compiler)
        decode = self.vocabulary.tokenizer.decode_bytes
        return {
            name: (decode(channel.tokens[name]).decode("utf-8", "replace"), *end)
            for name, end in channel.ends.items()
        }


def grammar_of(schema: dict[str, Any]) -> str:
    """Return the grammar of a request with this schema."""
    body = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    structure = structure_of(StructuredFields.model_validate(body))
    assert structure is not None
    return structure.grammar


def schemas(first_seed: int) -> Iterator[tuple[str, dict[str, Any], str, str]]:
    """Yield name, schema, grammar and the reason of a refusal (mostly empty) for seed after seed."""
    seed = first_seed
    while True:
        schema = SchemaMaker(seed).document()
        grammar = grammar_of(schema)
        yield f"s{seed}", schema, grammar, why_refused(grammar)
        seed += 1


def fault_of(text: str, schema: dict[str, Any]) -> str:
    """Return why an answer does not validate; an empty text if it does."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"no JSON: {error}: {text[:200]!r}"
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    error = next((error for error in validator.iter_errors(value) if not _is_year_zero(error)), None)
    return f"{error.message[:200]} (by {list(error.schema_path)[:6]})" if error else ""


def _is_year_zero(error: ValidationError) -> bool:
    """Return whether a date is refused for its year 0, which RFC 3339 has and Python does not."""
    return error.validator == "format" and str(error.instance).startswith("0000-")


def check(count: int, first_seed: int, folder: Path) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Answer ``count`` schemas; return how they ended, and the answers that do not validate."""
    answers, counts, faults = Answers(folder, first_seed), Counter[str](), list[dict[str, Any]]()
    source, batch, known = schemas(first_seed), dict[str, str](), dict[str, dict[str, Any]]()
    while counts["answered"] < count:
        name, schema, grammar, refusal = next(source)
        if refusal:
            counts["refused"] += 1
            counts[f"refused: {refusal.partition(':')[0][:60]}"] += 1
            continue
        batch[name], known[name] = grammar, schema
        if len(batch) < min(BATCH * 4, count - counts["answered"]):
            continue
        for answered, (text, finish, message) in answers.of(batch).items():
            counts["answered"] += 1
            counts[f"ended by {finish}"] += 1
            fault = fault_of(text, known[answered]) if finish == "stop" else ""
            if finish not in ("stop", "length"):
                fault = message
            if fault:
                faults.append(
                    {"seed": answered, "fault": fault, "text": text[:300], "schema": known[answered]}
                )
        batch.clear(), known.clear()
    return counts, faults


@click.command()
@click.option("--count", default=10_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--record/--no-record", default=True)
def main(count: int, seed: int, record: bool) -> None:
    """Answer random schemas and write the record."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        counts, faults = check(count, seed, Path(folder))
    for fault in faults[:20]:
        print(json.dumps(fault, ensure_ascii=False), file=sys.stderr)
    revision = ["git", "rev-parse", "--short", "HEAD"]
    content = {
        "name": "structured-schemas",
        "commit": subprocess.run(revision, capture_output=True, text=True, check=True).stdout.strip(),
        "machine": f"{platform.machine()}, one thread",
        "python": platform.python_version(),
        "command": shown_command(["python", "tests/bench/constrained/random_schemas.py", *sys.argv[1:]]),
        "seconds": round(time.monotonic() - began_s),
        "rows": [{"metric": "schemas", "of": name, "value": number} for name, number in counts.most_common()]
        + [{"metric": "schemas", "of": "invalid answers", "value": len(faults)}],
    }
    if record:
        RECORD.write_text(json.dumps(content, indent=1) + "\n")
    print(json.dumps(content["rows"], indent=1))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
