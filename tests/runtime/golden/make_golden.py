"""Record what Hugging Face transformers does with the example model, for the CPU engine to be compared with.

Runs where torch and transformers are (this project needs neither), on the folder that our own converter made:

    python tests/runtime/golden/make_golden.py MODEL_FOLDER tests/runtime/golden/smollm2.json

Float32 on the CPU, eager attention, greedy, end-of-sequence ignored. For every prompt: the text that the
chat template gives, its token ids, the next tokens with the gap between the two best logits at each step;
at the prompt's last token some numbers of the stream after some layers: a difference shows its origin.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
import transformers

NEW_TOKENS = 64
PROBED_LAYERS = (0, 1, 2, 10, 20, 29)  # 0: the embeddings; l: after layer l
TOPICS = (
    "rivers,bees,glass,iron,music,ships,wheat,clocks,stars,salt,bridges,paper,whales,maps,bread,storms,"
    "ink,silk,wells,owls,roads,kites,snow,ropes,lamps"
)
LONG = " ".join(
    f"Shelf {n} of the library holds {3 * n + 7} books about {topic}, and shelf {n + 1} is empty."
    for n, topic in enumerate(
        TOPICS.split(","),
        start=1,
    )
)
PROMPTS: dict[str, str | list[dict[str, str]]] = {
    "chat-short": [{"role": "user", "content": "What is the capital of France?"}],
    "chat-system": [
        {"role": "system", "content": "You answer like a patient teacher."},
        {"role": "user", "content": "Why is the sky blue?"},
        {"role": "assistant", "content": "Because air scatters blue light more than red light."},
        {"role": "user", "content": "And why is the sunset red?"},
    ],
    "chat-code": [
        {"role": "user", "content": "Write a Python function that reverses a string.\n\n\tUse a slice."}
    ],
    "chat-unicode": [
        {
            "role": "user",
            "content": "Translate to English: «Où est la gare ? 🚉 東京駅» — merci 👩‍👩‍👧‍👦 e\u0301",
        }
    ],
    "text-one-word": "Gravity",
    "text-digits": "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 3.14159 2024-05-17 0xFF 1,000,000 =",
    "text-code": "import math\n\n\ndef area(radius):\n    return",
    "text-long": LONG + " A visitor asks which shelves are full. The librarian says:",
}


def main(folder: Path, target: Path) -> None:
    """Write the golden file of the model in ``folder`` to ``target``."""
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    golden = {
        "model": "SmolLM2-135M-Instruct",
        "weights_sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "tokenizer_class": type(tokenizer).__name__,
        "prompts": [record(name, prompt, tokenizer, model) for name, prompt in PROMPTS.items()],
    }
    target.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def record(name: str, prompt: str | list[dict[str, str]], tokenizer, model) -> dict[str, object]:
    """Return everything about one prompt."""
    is_chat = not isinstance(prompt, str)
    text = (
        tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
        if is_chat
        else prompt
    )
    ids = tokenizer(text, add_special_tokens=not is_chat)["input_ids"]
    with torch.inference_mode():
        tokens, gaps, first = generate(model, ids)
    print(name, len(ids), "min gap", min(gaps), repr(tokenizer.decode(tokens))[:90], file=sys.stderr)
    return {
        "name": name,
        **({"messages": prompt} if is_chat else {}),
        "text": text,
        "ids": ids,
        "tokens": tokens,
        "gaps": [float(f"{gap:.3g}") for gap in gaps],
        "decoded": tokenizer.decode(tokens, skip_special_tokens=False),
        "probes": probes(first.hidden_states),
        "top_logits": top(first.logits[0, -1]),
    }


def generate(model, ids: list[int]):
    """Return the greedy tokens, the gap below each, and the model's output on the prompt."""
    output = first = model(torch.tensor([ids]), use_cache=True, output_hidden_states=True)
    tokens: list[int] = []
    gaps: list[float] = []
    while True:
        best = output.logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        if len(tokens) == NEW_TOKENS:
            return tokens, gaps, first
        output = model(torch.tensor([tokens[-1:]]), past_key_values=output.past_key_values, use_cache=True)


def probes(hidden_states) -> dict[str, dict[str, object]]:
    """Return mean, deviation and the first numbers of the last token's stream after some layers."""
    rows = {layer: hidden_states[layer][0, -1] for layer in PROBED_LAYERS}
    return {
        str(layer): {
            "mean": float(row.mean()),
            "deviation": float(row.std(correction=0)),
            "first": [float(value) for value in row[:8]],
        }
        for layer, row in rows.items()
    }


def top(logits) -> list[tuple[int, float]]:
    """Return the five best (id, logit) pairs."""
    best = logits.topk(5)
    return [(int(index), float(value)) for index, value in zip(best.indices, best.values, strict=True)]


if __name__ == "__main__":
    main(Path(sys.argv[1]).expanduser(), Path(sys.argv[2]))
