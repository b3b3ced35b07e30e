"""Write the measured tables of docs/quantization.md from the records in tests/bench/records/.

    python tests/bench/pages/quantization_figures.py

Perplexities and errors of KV formats are tables of tests/bench/quality/.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from performance import ROOT, read_records
from readme_figures import SERVERS, Records, row_of, table, value

PAGE = ROOT / "docs/quantization.md"
BEGIN, END = "<!-- figures: python tests/bench/pages/quantization_figures.py -->", "<!-- figures end -->"
FORMATS = ("bf16", "fp8", "fp8_block", "int4", "mxfp4", "nvfp4")
BATCHES = (1, 8, 16, 32, 64)
LAST = "served_prompt_tokens_per_s"
FIRST_TOKENS = (128, 512, 2048, 7900)
ENGINES = {
    "vllm": "vLLM 0.26.0",
    "server": "vLLM 0.26.0, as served",
    "vllm-weight-only": "vLLM 0.26.0, 16-bit activations",
    "transformers": "transformers 5.17.0",
}


def figures(records: Records) -> str:
    """Return the text between the marks."""
    names = [f"decode{'' if name == 'bf16' else f'-{name}'}-llama-3-8b" for name in FORMATS]
    keys = {"metric": "decode_step_ms", "context": 512}
    heads = ("sequences", *(name if name == "bf16" else f"`{name}`" for name in FORMATS))
    rows = (
        (str(batch), *(f"{value(records, name, batch=batch, **keys):.2f}" for name in names))
        for batch in BATCHES
    )
    return f"{BEGIN}\n{table(heads, rows)}{beside_vllm(records)}{same_tokens(records)}{END}"


def beside_vllm(records: Records) -> str:
    """Return the table of formats that both servers were measured on, if there are any."""
    files = {name: f"beside-vllm-{name}" for name in FORMATS}
    measured = {name: file for name, file in files.items() if is_complete(records.get(f"{file}.json"))}
    if not measured:
        return ""
    rows = [tokens_row(records, measured, clients) for clients in BATCHES]
    rows += [first_token_row(records, measured, tokens) for tokens in FIRST_TOKENS]
    keys = {"metric": LAST}
    pairs = [
        [value(records, file, server=server, **keys) for server in SERVERS] for file in measured.values()
    ]
    rows.append(("32 prompts of 2,048 at once, tokens/s", *(pair(*both, "{:,.0f}", -1) for both in pairs)))
    links = ", ".join(f"[{name}](../tests/bench/records/{file}.json)" for name, file in measured.items())
    text = "Over HTTP, Wisp's / vLLM 0.26.0's, in one call on the same checkpoints; **bold** is slower. The "
    text += f"records name the conditions: {links}."
    wrapped = textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)
    return f"\n{wrapped}\n\n{table(('', *(f'`{name}`' for name in measured)), rows)}"


def is_complete(record: dict[str, Any] | None) -> bool:
    """Return whether the last stage was measured of both servers."""
    last = [row["server"] for row in (record or {"rows": []})["rows"] if row["metric"] == LAST]
    return set(last) == set(SERVERS)


def tokens_row(records: Records, measured: dict[str, str], clients: int) -> tuple[str, ...]:
    """Return the mean milliseconds a token of so many streams."""
    keys = {"metric": "served_gap_ms", "batch": clients}
    pairs = [
        [row_of(records, file, server=server, **keys)["mean"] for server in SERVERS]
        for file in measured.values()
    ]
    title = f"ms a token, {clients} stream{'s' if clients > 1 else ''}"
    return title, *(pair(*both) for both in pairs)


def first_token_row(records: Records, measured: dict[str, str], tokens: int) -> tuple[str, ...]:
    """Return the mean milliseconds to the first token of a prompt, one at a time."""
    keys = {"metric": "first_token_alone", "arrivals": f"alone, {tokens} tokens"}
    pairs = [
        [row_of(records, file, server=server, **keys)["first_token_ms"]["mean"] for server in SERVERS]
        for file in measured.values()
    ]
    return f"first token of {tokens:,}, ms", *(pair(*both, "{:.1f}") for both in pairs)


def pair(ours: float, theirs: float, form: str = "{:.2f}", sign: int = 1) -> str:
    """Return both numbers, ours bold where it is worse; ``sign`` -1: more is better."""
    shown = form.format(ours)
    return f"{f'**{shown}**' if sign * ours > sign * theirs else shown} / {form.format(theirs)}"


def same_tokens(records: Records) -> str:
    """Return the table of greedy tokens beside other engines, if there is a record."""
    if "same-tokens.json" not in records:
        return ""
    rows = [
        (
            row["model"],
            f"`{row['weights']}`",
            ENGINES[row["engine"]],
            f"{row['same']} of {row['places']}",
            f"{row['worst_nats']:.2f}",
        )
        for row in records["same-tokens.json"]["rows"]
    ]
    text = (
        "Greedy tokens of what `wisp-runtime quantize` wrote, another engine beside ours on the same card, "
        "and its lead in nats where it differs ([record](../tests/bench/records/same-tokens.json)):"
    )
    heads = ("model", "weights", "engine", "the same", "largest lead")
    return f"\n{textwrap.fill(text, 120)}\n\n{table(heads, rows)}"


def main() -> None:
    """Write the table."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + figures(read_records()) + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
