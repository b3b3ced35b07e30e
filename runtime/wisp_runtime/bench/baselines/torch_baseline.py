"""Time Hugging Face transformers at a shape: eager, a compiled static cache, continuous batching.

A separate program, run by a Python that has torch and transformers, which Wisp does not need: its argument
is the folder of a ``config.json``, and it prints a JSON line per measurement. Random bf16 weights, greedy,
like the other baselines (``tests/bench/baselines/README.md``).

    python torch_baseline.py FOLDER --batch 1,32 --context 512 --steps 128 --modes eager,static
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from typing import Any

WARM_UP_STEPS = 32
REPEATS = 2
MODES = ("eager", "static", "continuous")


class StepClock:
    """A stopping criterion that never stops; it records the time after certain tokens."""

    def __init__(self, torch: Any, timed: tuple[int, ...]) -> None:
        self._torch, self._timed = torch, timed
        self._calls = 0
        self.times_s: dict[int, float] = {}

    def __call__(self, ids: Any, _scores: Any, **_more: Any) -> Any:
        """Called after each token; synchronizes the device only after timed ones."""
        self._calls += 1
        if self._calls in self._timed:
            self._torch.cuda.synchronize()
            self.times_s[self._calls] = time.perf_counter()
        return self._torch.zeros(ids.shape[0], dtype=self._torch.bool, device=ids.device)


def load(folder: str) -> tuple[Any, Any, Any]:
    """Return torch, transformers and a model with random weights on the GPU."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return torch, transformers, model


def generate(
    libraries: tuple[Any, Any, Any], batch: int, context: int, steps: int, **how: Any
) -> tuple[float, float]:
    """Return the milliseconds of a decode step, and those from the request to the first token."""
    torch, transformers, model = libraries
    ids = torch.randint(10, model.config.vocab_size - 10, (batch, context), device="cuda")
    last = WARM_UP_STEPS + steps
    clock = StepClock(torch, (1, WARM_UP_STEPS, last))
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=last,
        min_new_tokens=last,
        do_sample=False,
        stopping_criteria=transformers.StoppingCriteriaList([clock]),
        **how,
    )
    step_ms = 1e3 * (clock.times_s[last] - clock.times_s[WARM_UP_STEPS]) / steps
    return step_ms, 1e3 * (clock.times_s[1] - began_s)


def continuous(libraries: tuple[Any, Any, Any], batch: int, context: int, steps: int) -> float:
    """Return the milliseconds of a step of continuous batching, from its timestamps of each token.

    Its first token is no measure: the cache is allocated and graphs are captured before it.
    """
    torch, transformers, model = libraries
    last = WARM_UP_STEPS + steps
    config = transformers.GenerationConfig(
        max_new_tokens=last, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    ids = torch.randint(10, model.config.vocab_size - 10, (batch, context)).tolist()
    done = model.generate_batch(
        inputs=ids, generation_config=config, record_timestamps=True, progress_bar=False
    ).values()
    assert len(done) == batch, f"{len(done)} of {batch} requests were answered"
    times = [request.timestamps for request in done]
    step_s: float = statistics.median((each[last - 1] - each[WARM_UP_STEPS - 1]) / steps for each in times)
    return 1e3 * step_s


def measure(
    libraries: tuple[Any, Any, Any], mode: str, batch: int, context: int, steps: int
) -> dict[str, object]:
    """Measure one mode at one batch and context; a failure is reported and does not end the others."""
    how = {"cache_implementation": "static"} if mode == "static" else {}
    row: dict[str, object] = {"mode": mode, "batch": batch, "context": context}
    try:
        if mode == "continuous":
            return row | {"step_ms": continuous(libraries, batch, context, steps)}
        generate(libraries, batch, context, steps, **how)  # compiles, captures
        runs = [generate(libraries, batch, context, steps, **how) for _ in range(REPEATS)]
    except Exception as error:  # noqa: BLE001 (any failure of a baseline is a row of its own)
        return row | {"error": f"{type(error).__name__}: {error}"[:300]}
    return row | {
        "step_ms": statistics.median(step for step, _ in runs),
        "first_token_ms": statistics.median(first for _, first in runs),
    }


def main() -> None:
    """Print one JSON line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder")
    parser.add_argument("--batch", default="1")
    parser.add_argument("--context", default="512")
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--modes", default="eager,static")
    args = parser.parse_args()
    libraries = load(args.folder)
    versions = {"transformers": libraries[1].__version__, "torch": libraries[0].__version__}
    for context in map(int, args.context.split(",")):
        for batch in map(int, args.batch.split(",")):
            for mode in args.modes.split(","):
                row = measure(libraries, mode, batch, context, args.steps)
                sys.stdout.write(json.dumps(row | versions) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
