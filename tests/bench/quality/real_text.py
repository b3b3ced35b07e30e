"""Compare a real checkpoint's text with transformers: logits of a long prompt, and greedy tokens behind it.

    python tests/bench/quality/real_text.py FOLDER RECORD [--tokens 700] [--greedy 64]

Both compute on the CPU in float32, from the same folder. Needs torch, transformers and ml_dtypes, in an
environment of its own, with this repository's ``runtime`` in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import transformers

from wisp_runtime.layers.cache import allocate_blocks
from wisp_runtime.models.load import load_model, read_spec
from wisp_runtime.models.single_sequence import blocks_of, sequence_batch
from wisp_runtime.ops.cpu.ops import CpuOps

TEXT = Path(__file__).with_name("english.txt")


class Ours:
    """Our decoder with one sequence."""

    def __init__(self, folder: Path, context: int) -> None:
        self.spec, self.context, ops = read_spec(folder), context, CpuOps()
        self.model = load_model(folder, self.spec, ops)
        self.cache = allocate_blocks(self.spec, ops, blocks=blocks_of(context), block_tokens=16, kv="float32")

    def __call__(self, tokens, first):
        """Return logits ``[N, V]`` of ``tokens``, the first at position ``first``."""
        groups = len(self.cache.groups)
        batch = sequence_batch(tokens, first, self.context, range(len(tokens)), groups)
        return self.model.forward(batch, self.cache).logits


def compare(folder, tokens, greedy):
    """Return what a record says: cosines and maximum of the difference of logits, equal greedy tokens."""
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = Ours(folder, tokens + greedy)
    scale = getattr(reference.model.embed_tokens, "embed_scale", None)
    if scale is not None:  # float32's here, the checkpoint's dtype in ours
        scale.fill_(ours.spec.embedding_scale)
    prompt = tokenizer(TEXT.read_text()).input_ids[:tokens]
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0].numpy()
        answer = reference.generate(torch.tensor([prompt]), max_new_tokens=greedy, do_sample=False)[0]
    logits = ours(prompt, 0)
    cosines = (logits * expected).sum(1) / np.linalg.norm(logits, axis=1) / np.linalg.norm(expected, axis=1)
    expected_tokens, found = answer[len(prompt) :].tolist(), [int(logits[-1].argmax())]
    while len(found) < len(expected_tokens):
        found.append(int(ours(found[-1:], len(prompt) + len(found) - 1)[0].argmax()))
    return {
        "prompt_tokens": len(prompt),
        "worst_cosine": round(float(cosines.min()), 8),
        "max_difference": round(float(np.abs(logits - expected).max()), 6),
        "max_logit": round(float(np.abs(expected).max()), 3),
        "greedy_tokens": len(found),
        "equal_greedy_tokens": sum(a == b for a, b in zip(found, expected_tokens, strict=True)),
        "text": tokenizer.decode(found),
    }


def main():
    """Write the record."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("record", type=Path)
    arguments.add_argument("--tokens", type=int, default=700)
    arguments.add_argument("--greedy", type=int, default=64)
    given = arguments.parse_args()
    compared = compare(given.folder, given.tokens, given.greedy)
    text = compared.pop("text")
    result = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "rows": [{"model": given.folder.name} | compared],
        "text": text,
    }
    given.record.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
