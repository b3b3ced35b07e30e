"""Greedy tokens of what ``wisp-runtime quantize`` writes, beside another engine that loads the same files.

    python tests/bench/quality/beside_others.py quantize WORK       a random model, four formats
    python tests/bench/quality/beside_others.py generate WORK       our tokens
    python tests/bench/quality/beside_others.py ask WORK --engine vllm       (or transformers; where it is)
    python tests/bench/quality/beside_others.py compare WORK

Our tokens are the CPU engine's, float32 after dequantization, or with --device cuda those of our kernels, and
--source is a model of yours. The other engine (--engine server: a vLLM that is running, at --url) sees prompt
and our tokens at once and says which token it would have taken at each place, and how much likelier that is
than ours. A difference above --noise fails. Activations that the other engine quantizes (FP8, INT8) are part
of the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

Places = list[tuple[int, float]]
"""The best token of each new place, and its lead over ours in nats."""
NextToken = Callable[[list[int], int], int]
"""``next_token(step, first)``: the best token after ``step``, whose first token is at position ``first``."""
GAIN = {"embedding": 1.0, "projection": 1.0, "head": 1.5}
ARRAYS = ("tokens", "positions", "slots", "query_starts", "context_lengths", "block_tables", "logit_rows")
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


def make(work: Path, asked: argparse.Namespace) -> None:
    """Quantize a model into each format."""
    from wisp_runtime.quantize.quantizing import Options, quantize

    work.mkdir(parents=True, exist_ok=True)
    source = asked.source or write_source(work / "source")
    for to in asked.formats:
        quantize(source, work / to, Options(to, "rtn", threads=asked.threads))


def generate(work: Path, asked: argparse.Namespace) -> None:
    """Generate greedily from each result."""
    for to in asked.formats:
        prompts = prompts_of(work / to, asked.text)
        next_token = {"cpu": on_cpu, "cuda": on_gpu}[asked.device](work / to)
        tokens = [continuation(next_token, prompt) for prompt in prompts]
        (work / f"{to}.ours.json").write_text(json.dumps({"prompts": prompts, "tokens": tokens}))


def prompts_of(folder: Path, text: Path | None) -> list[list[int]]:
    """Return parts of a text's tokens, or random ones."""
    from wisp_runtime.models.load import read_spec
    from wisp_runtime.models.text_tokens import read_text, read_tokens

    vocab = read_spec(folder).vocab
    if text is None:
        picked = random.Random(2)
        return [picked.choices(range(10, vocab - 10), k=PROMPT_TOKENS) for _ in range(PROMPTS)]
    tokens = read_tokens(folder, read_text(text), vocab)
    step = (len(tokens) - PROMPT_TOKENS) // PROMPTS
    return [tokens[first : first + PROMPT_TOKENS] for first in range(0, step * PROMPTS, step)]


def write_source(source: Path) -> Path:
    """Write a small random model: outputs as large as inputs, so that rounding is not amplified."""
    import ml_dtypes
    import numpy as np
    from safetensors.numpy import save_file

    from wisp_plan.weights.tensors import expected_tensors
    from wisp_runtime.models.load import read_spec

    source.mkdir()
    (source / "config.json").write_text(json.dumps(CONFIG))
    numbers, tensors = np.random.default_rng(5), {}
    for tensor in expected_tensors(read_spec(source)):
        inputs = 1 if tensor.role == "embedding" else tensor.shape[-1]
        mean, deviation = (1.0, 0.2) if tensor.role == "norm" else (0.0, GAIN[tensor.role] * inputs**-0.5)
        values = mean + deviation * numbers.standard_normal(tensor.shape)
        tensors[tensor.name] = values.astype(ml_dtypes.bfloat16)
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    return source


def continuation(next_token: NextToken, prompt: list[int]) -> list[int]:
    """Return the greedy continuation of a prompt."""
    step, first, made = prompt, 0, list[int]()
    while len(made) < NEW_TOKENS:
        token = next_token(step, first)
        first += len(step)
        step = [token]
        made.append(token)
    return made


def on_cpu(folder: Path) -> NextToken:
    """Return the CPU engine's best token after a step of tokens at a position."""
    from wisp_runtime.layers.cache import allocate_blocks
    from wisp_runtime.models.load import load_model, read_spec
    from wisp_runtime.models.single_sequence import BLOCK_TOKENS, blocks_of, sequence_batch
    from wisp_runtime.ops.cpu.ops import CpuOps

    ops, context = CpuOps(threads=1), PROMPT_TOKENS + NEW_TOKENS
    model = load_model(folder, read_spec(folder), ops)
    cache = allocate_blocks(model.spec, ops, blocks=blocks_of(context), block_tokens=BLOCK_TOKENS)

    def next_token(step: list[int], first: int) -> int:
        batch = sequence_batch(step, first, context, [len(step) - 1])
        return int(model.forward(batch, cache).logits[0].argmax())

    return next_token


def on_gpu(folder: Path) -> NextToken:
    """Return the same of the GPU's kernels, weights held as they are stored."""
    from wisp_plan.memory.step import StepSizes
    from wisp_runtime.layers.cache import allocate_blocks
    from wisp_runtime.models.load import open_checkpoint, read_spec
    from wisp_runtime.models.single_sequence import BLOCK_TOKENS, blocks_of, sequence_batch
    from wisp_runtime.ops.registry import open_device

    device, context = open_device("cuda"), PROMPT_TOKENS + NEW_TOKENS
    ops = device.ops
    checkpoint = open_checkpoint(folder, read_spec(folder)).held("auto", device.memory().formats)
    model = checkpoint.load(ops)
    device.reserve(model.spec, StepSizes(context, 1, context, BLOCK_TOKENS))
    cache = allocate_blocks(model.spec, ops, blocks=blocks_of(context), block_tokens=BLOCK_TOKENS)

    def next_token(step: list[int], first: int) -> int:
        batch = sequence_batch(step, first, context, [len(step) - 1])
        placed = {name: ops.from_host(getattr(batch, name)) for name in ARRAYS}
        return int(ops.to_host(model.forward(replace(batch, **placed), cache).logits)[0].argmax())

    return next_token


def ask(work: Path, asked: argparse.Namespace) -> None:
    """Have another engine score our tokens: its best token at each place, and how much likelier that is."""
    for to in asked.formats:
        ours = json.loads((work / f"{to}.ours.json").read_text())
        sequences = [a + b for a, b in zip(ours["prompts"], ours["tokens"], strict=True)]
        match asked.engine:
            case "vllm":
                scored = by_vllm(work / to, sequences)
            case "server":
                scored = by_server(asked.url, sequences)
            case _:
                scored = by_transformers(work / to, sequences)
        name = asked.label or asked.engine
        (work / f"{to}.{name}.json").write_text(json.dumps({"engine": asked.engine, "scored": scored}))


def by_server(url: str, sequences: list[list[int]]) -> list[Places]:
    """Return the new places of a vLLM server."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as response:
        model = json.load(response)["data"][0]["id"]
    scored = []
    for sequence in sequences:
        body = {"model": model, "prompt": sequence, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 8}
        head = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), head)
        with urllib.request.urlopen(request, timeout=60) as response:
            places = json.load(response)["choices"][0]["prompt_logprobs"]
        likely = [{int(token): each["logprob"] for token, each in (place or {}).items()} for place in places]
        scored.append(leads(likely, sequence))
    return scored


def leads(likely: list[dict[int, float]], sequence: list[int]) -> Places:
    """Return the new places of log probabilities of likely tokens, ours always among them."""
    places = []
    for place in range(PROMPT_TOKENS, len(sequence)):
        best = max(likely[place], key=lambda token: likely[place][token])
        places.append((best, likely[place][best] - likely[place][sequence[place]]))
    return places


def by_vllm(folder: Path, sequences: list[list[int]]) -> list[Places]:
    """Return the new places of a vLLM in this process."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=CONFIG["max_position_embeddings"],
        gpu_memory_utilization=0.05,
        kv_cache_memory_bytes=1 << 30,
        enable_prefix_caching=False,
    )
    wanted = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=8, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": each} for each in sequences], wanted, use_tqdm=False)
    scored = []
    for output, sequence in zip(outputs, sequences, strict=True):
        places = output.prompt_logprobs
        likely = [{int(token): each.logprob for token, each in (place or {}).items()} for place in places]
        scored.append(leads(likely, sequence))
    return scored


def by_transformers(folder: Path, sequences: list[list[int]]) -> list[Places]:
    """Return the new places of transformers, which dequantizes to bf16."""
    import torch
    import transformers

    section: dict[str, Any] = transformers.AutoConfig.from_pretrained(folder).quantization_config
    config = transformers.CompressedTensorsConfig(**{**section, "run_compressed": False})
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", quantization_config=config
    )
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
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
    """Print a JSON object a format and engine; return 1 if a token differs by more than the noise."""
    failed = 0
    for path in sorted(work.glob("*.*.json")):
        to, engine, _ = path.name.split(".")
        if engine == "ours":
            continue
        scored = json.loads(path.read_text())["scored"]
        leads_of_all = [lead for places in scored for _, lead in places]
        differing = [lead for lead in leads_of_all if lead > 0]
        worst = max(differing, default=0.0)
        failed |= worst > noise
        same = len(leads_of_all) - len(differing)
        row = {"model": work.name, "weights": to, "engine": engine, "places": len(leads_of_all), "same": same}
        print(json.dumps(row | {"worst_nats": round(worst, 4)}))
    return failed


def main() -> int:
    """Run a step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["quantize", "generate", "ask", "compare"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--source", type=Path, help="a 16-bit checkpoint; default: a small random one")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="device of our tokens")
    parser.add_argument("--text", type=Path, help="prompts are parts of it; default: random tokens")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--engine", choices=["vllm", "server", "transformers"], default="vllm")
    parser.add_argument("--label", help="name of the engine in the result, if not --engine")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="of --engine server")
    parser.add_argument("--format", dest="formats", action="append", choices=FORMATS)
    parser.add_argument("--noise", type=float, default=0.25, help="nats")
    asked = parser.parse_args()
    asked.formats = asked.formats or list(FORMATS)
    match asked.step:
        case "quantize":
            make(asked.work, asked)
        case "generate":
            generate(asked.work, asked)
        case "ask":
            ask(asked.work, asked)
        case _:
            return compare(asked.work, asked.noise)
    return 0


if __name__ == "__main__":
    sys.exit(main())
