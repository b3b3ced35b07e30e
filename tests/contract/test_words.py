"""Words and prose of the tree: the field's terms, openings of docstrings, lines of at most 120 columns.

``WORDS`` lists private words of earlier versions with the term to use. Each has a pattern that matches
nothing else in the folders of its scope, so a hit is a mistake. CONTRIBUTING.md has the list in short form.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".py", ".cu", ".cuh", ".h", ".cpp", ".toml", ".md", ".sh", ".yaml"}
EXCLUDED = (
    "tests/bench/records/",  # records never change
    "docs/decisions/",  # history
    "CHANGELOG.md",  # history
    "docs/performance.md",  # generated from the records
    "tests/contract/test_words.py",
)
MAX_COLUMNS = 120

EVERYWHERE = ("operator/", "runtime/", "kernels/", "tests/", "docs/", "README.md", "CONTRIBUTING.md")
RUNTIME = ("runtime/", "kernels/", "tests/", "docs/", "README.md")
KERNELS = ("kernels/", "runtime/wisp_runtime/ops/", "tests/gpu/", "tests/emulator/")
GATEWAY = ("operator/wisp_gateway/", "tests/gateway/")
OPERATOR = ("operator/wisp_operator/", "tests/operator/")


class Word(NamedTuple):
    """A private word that must not come back.

    Attributes:
        pattern: regular expression of the word.
        use: term to use instead.
        scope: folders in which every hit is a mistake.
    """

    pattern: str
    use: str
    scope: tuple[str, ...] = EVERYWHERE


WORDS = (
    # GEMM and its tiles
    Word(r"\b(?<!dot )(?<!matrix )(?<!high )(?<!their )(?<!-)products?\b(?!-)", "GEMM, matmul", KERNELS),
    Word(r"\bmost_?parts\b|\bJoinBytes\b|\bjoin_bytes\b", "split-K or split-KV reduction, partial results"),
    Word(r"\bis_cut\b|\bCut\b", "split, stream-K tile", RUNTIME),
    Word(r"\bUNIT_ROWS\b|\bTILE_TOKENS\b", "BLOCK_M, BLOCK_N", RUNTIME),
    Word(r"\bprocessors\b", "sm_count, multiprocessors", (*KERNELS, "runtime/wisp_plan/")),
    Word(r"packed order", "tiled, 128B-swizzled layout"),
    Word(r"\bRowOrder\b|\bheads_128\b", "RowPermutation, rope_interleaved"),
    # RoPE
    Word(r"\bRotation\b|\brotation\(", "RopeTable, cos/sin table"),
    Word(r"\brotates\b|\brows that turn\b|\bturns? (its|their|the) rows\b", "apply RoPE", RUNTIME),
    # sampling
    Word(r"\bDraw\b|\bdraws\b|\bdrawn\b|\bdrawer\b", "sample, sampled tokens, SampledToken"),
    Word(r"\bawaited_row\b", "pending_sample_row"),
    Word(r"\bbatch company\b|\bin company\b|\bits company\b|\bwhatever runs beside\b", "batch-invariant"),
    Word(r"\bApartScheduler\b|\bkeeps_apart\b", "deterministic scheduler, separate_prefill_decode"),
    # persistent decode kernel
    Word(r"\bWholeStep\b|\bwhole_steps?\b|\bwhole steps?\b|\bin one launch\b", "persistent decode kernel"),
    Word(r"\bRoom<|\bkMost[A-Z]|\b_?MOST_[A-Z]|\b_?LEAST_[A-Z]", "SmemLayout; MAX_*, MIN_*, kMax*"),
    Word(r"\bWITNESSES\b|\bWAITED\b|\bpatience\b", "fault reporters, wait reasons, timeout", RUNTIME),
    # weights
    Word(r"\bIntake\b|\bRingIntake\b|\bCarrier\b", "WeightUploader, PipelinedUploader, copy engine", RUNTIME),
    Word(r"\btake_rows\b", "gather_rows"),
    Word(r"\bfix_order\b", "set_batch_invariant"),
    Word(r"\bEarlyContext\b", "ContextPrefetch"),
    Word(r"\bInventory\b|\bread_inventory\b", "TensorIndex"),
    Word(r"quantis(e|ing|ation)", "quantized: American spelling"),
    # engine
    Word(r"\bflying\b|\blanding\b|\b_hear\b", "in_flight, completed, _handle_messages"),
    Word(r"\bChosen\b", "DecodeStrategy"),
    Word(r"\bentered_blocks\b", "cached_blocks"),
    Word(r"\bHEAD_START\b", "PRIORITY_BOOST"),
    Word(r"\b_merit\b", "_score"),
    # server and bench
    Word(
        r"\bAnswerText\b|\bChatShape\b|\bCompletionShape\b", "TextDeltas, ChatFormatter, CompletionFormatter"
    ),
    # In quotes it is the name of a field that llama.cpp's server has.
    Word(r"(?<!\")\b[Pp]ieces?\b", "read chunk, text delta, work tile, range"),
    Word(r"\b_?whole\(|\b_whole\b", "integer(), complete"),
    Word(r"\blast_words\b|\bleave_words\b", "termination message, last log lines"),
    Word(r"\bopen_subject\(|\bWanted\(|\bclass Wanted\b", "open_target, TargetOptions"),
    Word(r"\bwith_peer\b|\bPEERS\b|\bfloor_m?s\b|_floor_m?s\b", "baseline, lower bound"),
    # gateway and operator
    Word(r"\b[Dd]esks?\b", "ModelState, ModelQueue"),
    Word(
        r"\bFleet\b|\bTicket\b|\breadmit\b|\bvacate\b", "ModelRegistry, QueuedRequest, requeue_front, release"
    ),
    Word(r"\bcomplaints?\b", "validation error, message"),
    Word(
        r"\bjudgement\b|\bobituary\b|\bSurroundings\b|\bworklist\b",
        "status rules, exit log, BuildContext, workqueue",
    ),
    Word(r"\bSighting\b|\b_spy\b|\breaper\b", "observed lease, _on_event, subreaper"),
    # everywhere
    Word(r"\b[Tt]wins?\b|\boracles?\b", "reference implementation, mirror constant"),
    Word(r"\bhouse rules?\b|\bthe house\b", "package, folder, our rules"),
    Word(
        r"_(told|twins?|drawn|draws|one_launch|whole_steps?|in_company|pieces?)_",
        "the same in names",
        ("tests/",),
    ),
    Word(r"\b(is|are|was|were|be) told\b", "reported, refused, documented"),
    Word(
        r"\b(Trial|Facts|Door|Lane)\b",
        "Candidate, Observation, BootstrapApp, Stream",
        ("operator/", "runtime/"),
    ),
    Word(r"\bfor one in\b", "a loop variable with a meaning"),
)
OPENING = re.compile(r"(What|How|Which|Where|Who|When|Whose|Whether)\b")
HEADLESS = re.compile(r"^\s{4,}\*{0,2}[a-z_]\w*(, [a-z_]\w*)*: (of|where|whose|how|what|which|who|as|that)\b")


class Hit(NamedTuple):
    """A line that breaks a rule."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text.strip()[:100]}"


@cache
def texts() -> dict[str, list[str]]:
    """Return the lines of each tracked source or page."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [path for path in listing.stdout.splitlines() if Path(path).suffix in SUFFIXES]
    kept = [path for path in paths if path.startswith(EVERYWHERE) and not path.startswith(EXCLUDED)]
    return {path: (ROOT / path).read_text().splitlines() for path in kept if (ROOT / path).is_file()}


def searched(path: str, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Yield numbered lines, without CONTRIBUTING.md's own list of words."""
    in_list = False
    for number, line in enumerate(lines, start=1):
        if path == "CONTRIBUTING.md" and line.startswith("#"):
            in_list = line == "## Words"
        if not in_list:
            yield number, line


def hits_of(pattern: re.Pattern[str], scope: tuple[str, ...]) -> list[Hit]:
    """Return the lines in ``scope`` that match."""
    return [
        Hit(path, number, line)
        for path, lines in texts().items()
        if path.startswith(scope)
        for number, line in searched(path, lines)
        if pattern.search(line)
    ]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: word.use)
def test_private_words_do_not_come_back(word):
    hits = hits_of(re.compile(word.pattern), word.scope)
    assert not hits, f"write {word.use!r} instead:\n" + "\n".join(map(str, hits))


def test_module_docstrings_open_with_a_noun_or_a_verb():
    hits = []
    for path, lines in texts().items():
        if path.endswith(".py"):
            opening = ast.get_docstring(ast.parse("\n".join(lines))) or ""
            if OPENING.match(opening):
                hits.append(Hit(path, 1, opening.splitlines()[0]))
    assert not hits, "open with a noun or a verb:\n" + "\n".join(map(str, hits))


def test_attribute_lines_start_with_a_noun():
    hits = [
        Hit(path, number, line)
        for path, lines in texts().items()
        if path.endswith(".py")
        for number, line in enumerate(lines, start=1)
        if HEADLESS.match(line) and not line.rstrip().endswith((",", "):"))
    ]
    assert not hits, "name the thing after the colon:\n" + "\n".join(map(str, hits))


def test_prose_wraps_at_120_columns():
    hits = []
    for path, lines in texts().items():
        if not path.endswith(".md"):
            continue
        in_code = False
        for number, line in enumerate(lines, start=1):
            in_code ^= line.lstrip().startswith("```")
            if len(line) > MAX_COLUMNS and not in_code and not line.lstrip().startswith("|"):
                hits.append(Hit(path, number, line))
    assert not hits, f"wrap at {MAX_COLUMNS} columns:\n" + "\n".join(map(str, hits))
