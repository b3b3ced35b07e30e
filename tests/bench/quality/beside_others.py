"""Greedy tokens of what ``wisp-runtime quantize`` writes, beside another engine that loads the same files.

    python tests/bench/quality/beside_others.py make WORK           a random model, four formats, our tokens
    python tests/bench/quality/beside_others.py ask WORK --engine vllm       (or transformers; where it is)
    python tests/bench/quality/beside_others.py compare WORK

Our tokens are the CPU engine's, float32 after dequantization. The other engine sees prompt and our tokens at
once and says which token it would have taken at each place, and how much likelier that is than ours. A
difference above --noise fails. Activations that the other engine quantizes (FP8, INT8) are part of the noise.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

FORMATS = ("fp8", "int8", "int4", "nvfp4")
PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 8, 24, 40
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "vocab_size": 2048,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make(work: Path) -> None:
    """Write the model, quantize it, and generate greedily from each result."""
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    from wisp_plan.weights.tensors import expected_tensors
    from wisp_runtime.models.load import read_spec
    from wisp_runtime.quantize.quantizing import Options, quantize

    source = work / "source"
    source.mkdir(parents=True)
    (source / "config.json").write_text(json.dumps(CONFIG))
    numbers, tensors = np.random.default_rng(5), {}
    for tensor in expected_tensors(read_spec(source)):
        mean, deviation = (1.0, 0.2) if tensor.role == "norm" else (0.0, 1.5 * tensor.shape[-1] ** -0.5)
        values = mean + deviation * numbers.standard_normal(tensor.shape)
        tensors[tensor.name] = values.astype(ml_dtypes.bfloat16)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    picked = random.Random(2)
    prompts = [picked.choices(range(10, 2000), k=PROMPT_TOKENS) for _ in range(PROMPTS)]
    for to in FORMATS:
        quantize(source, work / to, Options(to, "rtn"))
        tokens = [generate(work / to, prompt) for prompt in prompts]
        (work / f"{to}.ours.json").write_text(json.dumps({"prompts": prompts, "tokens": tokens}))


def generate(folder: Path, prompt: list[int]) -> list[int]:
    """Return the greedy continuation by the CPU engine's model."""
    from wisp_runtime.layers.cache import allocate_blocks
    from wisp_runtime.models.load import load_model, read_spec
    from wisp_runtime.models.single_sequence import BLOCK_TOKENS, blocks_of, sequence_batch
    from wisp_runtime.ops.cpu.ops import CpuOps

    ops, context = CpuOps(threads=1), PROMPT_TOKENS + NEW_TOKENS
    model = load_model(folder, read_spec(folder), ops)
    cache = allocate_blocks(model.spec, ops, blocks=blocks_of(context), block_tokens=BLOCK_TOKENS)
    step, first, made = prompt, 0, list[int]()
    while len(made) < NEW_TOKENS:
        logits = model.forward(sequence_batch(step, first, context, [len(step) - 1]), cache).logits
        first += len(step)
        step = [int(logits[0].argmax())]
        made += step
    return made


def ask(work: Path, engine: str, formats: list[str]) -> None:
    """Have another engine score our tokens: its best token at each place, and how much likelier that is."""
    for to in formats:
        ours = json.loads((work / f"{to}.ours.json").read_text())
        sequences = [a + b for a, b in zip(ours["prompts"], ours["tokens"], strict=True)]
        scored = {"vllm": by_vllm, "transformers": by_transformers}[engine](work / to, sequences)
        (work / f"{to}.theirs.json").write_text(json.dumps({"engine": engine, "scored": scored}))


def by_vllm(folder: Path, sequences: list[list[int]]) -> list[list[tuple[int, float]]]:
    """Return for each new place vLLM's best token, and its lead over ours."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=CONFIG["max_position_embeddings"],
        gpu_memory_utilization=0.2,
        enable_prefix_caching=False,
    )
    wanted = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=8, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": each} for each in sequences], wanted, use_tqdm=False)
    scored = []
    for output, sequence in zip(outputs, sequences, strict=True):
        places = []
        for place in range(PROMPT_TOKENS, len(sequence)):
            likely = {token: found.logprob for token, found in output.prompt_logprobs[place].items()}
            best = max(likely, key=lambda token: likely[token])
            places.append((int(best), float(likely[best] - likely[sequence[place]])))
        scored.append(places)
    return scored


def by_transformers(folder: Path, sequences: list[list[int]]) -> list[list[tuple[int, float]]]:
    """Return the same of transformers, which dequantizes to bf16."""
    import torch
    import transformers

    section: dict[str, Any] = transformers.AutoConfig.from_pretrained(folder).quantization_config
    config = transformers.CompressedTensorsConfig(**{**section, "run_compressed": False})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype="auto",
        quantization_config=config,
        device_map="cuda" if torch.cuda.is_available() else "cpu",
    )
    scored = []
    for sequence in sequences:
        with torch.inference_mode():
            logits = model(torch.tensor([sequence], device=model.device)).logits[0].float().log_softmax(-1)
        best = logits.argmax(-1).tolist()
        places = []
        for place in range(PROMPT_TOKENS, len(sequence)):
            row, token = logits[place - 1], best[place - 1]
            places.append((token, float(row[token] - row[sequence[place]])))
        scored.append(places)
    return scored


def compare(work: Path, noise: float) -> int:
    """Print a line a format; return 1 if a token differs by more than the noise."""
    failed = 0
    for path in sorted(work.glob("*.theirs.json")):
        theirs = json.loads(path.read_text())
        leads = [lead for places in theirs["scored"] for _, lead in places]
        differing = [lead for lead in leads if lead > 0]
        worst = max(differing, default=0.0)
        failed |= worst > noise
        same = len(leads) - len(differing)
        name = path.name.partition(".")[0]
        print(f"{name}: {same} of {len(leads)} are {theirs['engine']}'s too, others {worst:.3f} nats apart")
    return failed


def main() -> int:
    """Run a step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["make", "ask", "compare"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--engine", choices=["vllm", "transformers"], default="vllm")
    parser.add_argument("--format", dest="formats", action="append", choices=FORMATS)
    parser.add_argument("--noise", type=float, default=0.25, help="nats")
    asked = parser.parse_args()
    match asked.step:
        case "make":
            make(asked.work)
        case "ask":
            ask(asked.work, asked.engine, asked.formats or list(FORMATS))
        case _:
            return compare(asked.work, asked.noise)
    return 0


if __name__ == "__main__":
    sys.exit(main())
