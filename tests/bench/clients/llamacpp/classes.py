"""Give each failure a class and a reason, and write the record.

    python tests/bench/clients/llamacpp/classes.py --commit SHA --note NOTE ROWS.jsonl… > record.json

Rows of later files replace those of earlier ones. The exit status is 1 if a failure has no class.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

OWN, MODEL = "llama.cpp's own endpoint", "a model that is not here"
FIELDS, RULES = "llama.cpp's fields and values", "llama.cpp's rules"
COMPLETION = "/completion or /completions; /v1/completions is here"
NONE = "none"
NO_PATH = "404|KeyError: 'content'"
FIRST_DELTA = "no content in the first delta; here an empty one, as OpenAI's"
FINGERPRINT = "system_fingerprint, which begins with b"
STORIES = "text, or counts of tokens, of stories260K"

FAILURES = (  # test, its error, class, reason: a test that fails with another error has no class
    ("basic.py::test_server_props", "404", OWN, "/props"),
    ("basic.py::test_server_slots", "404 == 501", OWN, "/slots"),
    ("basic.py::test_no_ui", "404", OWN, "a web page at /"),
    ("basic.py::test_load_split_model", "404", OWN, COMPLETION),
    (
        "basic.py::test_server_model_aliases_and_tags",
        "2 == 1",
        FIELDS,
        "aliases and tags in one object of /models",
    ),
    ("completion.py::test_completion_with_openai_library", "None is not None", FIELDS, FINGERPRINT),
    ("completion.py::test_completion_stream_with_openai_library", "assert False", MODEL, STORIES),
    ("test_completion.py::test_cancel_request", "KeyError: 0", OWN, "/slots"),
    ("test_completion.py::|ignore_eos.py::", NO_PATH, OWN, COMPLETION),
    ("ctx_shift.py::test_ctx_shift_disabled_stream", "n_predict", FIELDS, "n_predict, our max_tokens"),
    ("ctx_shift.py::", "404|No such path", OWN, COMPLETION),
    ("proxy.py::|test_cors_proxy", "404", OWN, "/cors-proxy"),
    ("compat_gcp.py::", "404", OWN, "/predict"),
    ("test_access_public_endpoint", "401", RULES, "lists models without a key; OpenAI refuses"),
    ("test_access_static_assets", "404", OWN, "a web page at /"),
    ("security.py::test_(in)?correct_api_key", "404", OWN, COMPLETION),
    ("security.py::test_cors_", "404", OWN, "a preflight of /completions"),
    ("security.py::test_local_media_file", "400", MODEL, "an image, and a model that sees it"),
    ("test_chat_completion(\\[|_with_openai)", "system_fingerprint|None is not None", FIELDS, FINGERPRINT),
    ("test_chat_completion_cached_tokens", "26 == 77", MODEL, STORIES),
    ("test_chat_completion_stream|test_logprobs_stream", "'' is None", FIELDS, FIRST_DELTA),
    ("test_chat_template|continue_final_message", "'__verbose' in", FIELDS, "the prompt in __verbose"),
    ("test_verbose_debug", "400 == 200", FIELDS, "the prompt in __verbose"),
    ("test_completion_with_json_schema", "got 400", FIELDS, "json_schema, our response_format"),
    ("test_completion_with_grammar", "grammar is not", FIELDS, "grammar, our guided_grammar (the same GBNF)"),
    ("test_invalid_chat_completion_req", "200 == 400", RULES, "refuses two last assistant's messages"),
    ("test_context_size_exceeded", "exceed_context_size", FIELDS, "type of an error"),
    ("test_return_progress", "return_progress", FIELDS, "return_progress"),
    ("test_chat_completions_token_count", "404", OWN, "/chat/completions/input_tokens"),
    ("timings_per_token", "timings_per_token", FIELDS, "timings_per_token"),
    ("oai_responses.py::test_responses_with_openai_library", "assert False", MODEL, STORIES),
    ("llama_telemetry", "timings_per_token", FIELDS, "timings_per_token"),
    ("with_image|vision_format", "400 == 500", RULES, "a 500 for an image, here a 400"),
    ("test_anthropic_vision_base64", "huggingface", MODEL, "an image, and a model that sees it"),
    ("test_anthropic_empty_messages", "400 == 200", RULES, "accepts no messages; Anthropic refuses"),
    ("history_in_template|test_apply_chat_template", "404", OWN, "/apply-template"),
    ("test_embedding_mixed_input", "400 == 200", RULES, "accepts empty or mixed input; OpenAI refuses"),
    ("test_embedding_pooling_none", "404 == 200|200 == 400", FIELDS, "--pooling none"),
    ("test_embedding_error_prompt_too_long", "'too large' in", FIELDS, "words of the message"),
    ("test_embedding_usage", "assert (4|7|14) ==", MODEL, "counts of tokens of bge-small"),
    ("test_rerank_usage", "assert (174|180) ==", MODEL, "counts of tokens of jina-reranker"),
    ("rerank.py::test_rerank$", "assert 3 == 2", MODEL, "an order that a reranker gives"),
    ("test_rerank_tei", "400 == 200", FIELDS, "texts, and a list as the answer: TEI's"),
    ("test_tokenize_with_bos", "== 1", MODEL, "a tokenizer that puts <s> in front"),
    ("tool_call.py::.*STREAMED", "non empty content", FIELDS, FIRST_DELTA),
)
REFUSED = "any refusal passes it"
WEAK = (  # tests that pass, and show less than their name says
    (
        "test_responses_stream_with_openai_library",
        "text is compared in response.completed; ours is incomplete",
    ),
    ("test_local_media_file", REFUSED),
    ("test_completion.py::test_(completion_unified|json_prompt_mtm)", REFUSED),
    ("test_completion_with_invalid_grammar", REFUSED),
)
NOT_RUN = {
    "/apply-template": "template",
    "/completion": "kv_keep_only_active, speculative, lora (also /lora-adapters), slot_save (also /slots)",
    "/infill": "infill",
    "/tools": "tools_builtin",
    "models of a router, downloads": "router",
    "/props": "sleep",
    "images": "vision_api",
}


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=Path, nargs="+")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--note", required=True)
    asked = parser.parse_args()
    lines = [line for file in asked.rows for line in file.read_text().splitlines()]
    results = {row["test"].removeprefix("unit/"): row for row in map(json.loads, lines)}
    rows = [_row(test, row) for test, row in results.items()]
    print(_record(rows, asked.commit, asked.note))
    sys.exit(any(row.get("class") == NONE for row in rows))


def _row(test: str, row: dict[str, str]) -> dict[str, str]:
    shown = {"test": test, "result": row["result"]}
    if row["result"] == "passed":
        weak = next((reason for pattern, reason in WEAK if re.search(pattern, test)), None)
        return {**shown, "though": weak} if weak else shown
    if row["result"] == "skipped":
        return shown
    kind, reason = next((rule[2:] for rule in FAILURES if _explains(rule, test, row)), (NONE, row["error"]))
    return {**shown, "class": kind, "reason": reason}


def _explains(rule: tuple[str, str, str, str], test: str, row: dict[str, str]) -> bool:
    pattern, error, _, _ = rule
    return bool(re.search(pattern, test) and re.search(error, row["error"]))


def _record(rows: Sequence[dict[str, str]], commit: str, note: str) -> str:
    """Return the JSON: a summary in `rows`, and a line for each of `tests`."""
    failed = Counter((row["class"], row["reason"]) for row in rows if row["result"] == "failed")
    record = {
        "name": "llamacpp-server-tests",
        "commit": commit,
        "machine": "2 CPUs, shared by others; SmolLM2-135M-Instruct on the CPU",
        "command": "python tests/bench/clients/llamacpp/run.py --checkout CHECKOUT --python VENV/bin/python",
        "note": note,
        "rows": [
            *_suites(rows),
            *({"class": kind, "reason": reason, "tests": n} for (kind, reason), n in sorted(failed.items())),
        ],
        "not run": NOT_RUN,
    }
    lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in _numbered(rows))
    return json.dumps(record, indent=1, ensure_ascii=False)[:-2] + f',\n "tests": [\n  {lines}\n ]\n}}'


def _numbered(rows: Sequence[dict[str, str]]) -> Iterator[dict[str, object]]:
    """Yield the rows, with a number for a case's arguments: those are llama.cpp's texts."""
    cases: Counter[str] = Counter()
    for row in rows:
        test = row["test"].partition("[")[0]
        cases[test] += 1
        yield {"test": test, "case": cases[test], **{key: row[key] for key in row if key != "test"}}


def _suites(rows: Sequence[dict[str, str]]) -> Iterator[dict[str, object]]:
    """Yield the results of each file, and of all."""
    files = {row["test"].partition(".py::")[0] for row in rows}
    for file in (*sorted(files), ""):
        of_file = [row for row in rows if row["test"].startswith(file)]
        counts = Counter(row["result"] for row in of_file)
        numbers = {result: counts[result] for result in ("passed", "failed", "skipped")}
        weak = sum("though" in row for row in of_file)
        yield {"file": file or "all", "tests": len(of_file), **numbers, "passed, and show little": weak}


if __name__ == "__main__":
    main()
