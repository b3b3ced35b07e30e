"""vLLM's engine without HTTP: decode steps, first tokens and prefill as `wisp-runtime bench` measures ours.

    PYTHONPATH=SITE python tests/bench/peer/in_process.py --model FOLDER [--compile-sizes 1,8,32]

FOLDER needs config.json alone: weights and prompts are random. A decode step is the mean over 224 steps: the
time of 256 tokens less that of 32, over the difference. Prints a row of a record a line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FEW, MANY = 32, 256
FIRST, PREFILL = (128, 512, 2048, 7900), ((16, 2048), (64, 512))


class Engine:
    """vLLM with random weights."""

    def __init__(self, folder: Path, compile_sizes: list[int]) -> None:
        from vllm import LLM, SamplingParams

        tuned = {"compilation_config": {"compile_sizes": compile_sizes}} if compile_sizes else {}
        self._llm = LLM(
            model=str(folder),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=8192,
            enable_prefix_caching=False,
            **tuned,
        )
        self._params: Callable[[int], Any] = lambda tokens: SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        self._vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        self._rng = random.Random(1)

    def seconds(self, batch: int, prompt: int, tokens: int) -> float:
        """Return the time of ``batch`` new prompts that generate ``tokens`` each."""
        ids = [self._rng.choices(range(10, self._vocab - 10), k=prompt) for _ in range(batch)]
        prompts = [{"prompt_token_ids": each} for each in ids]
        began_s = time.perf_counter()
        self._llm.generate(prompts, self._params(tokens), use_tqdm=False)
        return time.perf_counter() - began_s

    def step_ms(self, batch: int, prompt: int, many: int) -> float:
        """Return the mean time of a decode step."""
        few_s, many_s = (self.seconds(batch, prompt, tokens) for tokens in (FEW, many))
        return 1e3 * (many_s - few_s) / (many - FEW)


def show(metric: str, path: str, batch: int, context: int, runs: list[float]) -> None:
    """Print a row."""
    fixed = {"shape": "llama-3-8b", "weights": "bf16", "kv": "bf16", "batch": batch, "context": context}
    rounded = [round(run, 4) for run in runs]
    print(
        json.dumps(
            {"metric": metric, "path": path, **fixed, "value": statistics.median(rounded), "runs": rounded}
        )
    )


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--compile-sizes", default="")
    parser.add_argument("--repeats", type=int, default=3)
    for flag in ("--first-tokens", "--prefill", "--long"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args()
    sizes = [int(size) for size in asked.compile_sizes.split(",") if size]
    engine, path = Engine(asked.model, sizes), "vllm, tuned" if sizes else "vllm"
    steps = [(int(batch), 512, MANY) for batch in asked.batches.split(",")]
    for batch, prompt, many in [*steps, *([(1, 7900, 160), (16, 7900, 160)] if asked.long else [])]:
        engine.seconds(batch, prompt, FEW)
        runs = [engine.step_ms(batch, prompt, many) for _ in range(asked.repeats)]
        show("decode_step_ms", path, batch, prompt, runs)
    for prompt in FIRST if asked.first_tokens else ():
        engine.seconds(1, prompt, 1)
        show("first_token_ms", path, 1, prompt, [1e3 * engine.seconds(1, prompt, 1) for _ in range(7)])
    for batch, prompt in PREFILL if asked.prefill else ():
        engine.seconds(batch, prompt, 1)
        runs = [batch * prompt / engine.seconds(batch, prompt, 1) for _ in range(3)]
        show("prefill_tokens_per_s", path, batch, prompt, runs)


if __name__ == "__main__":
    main()
