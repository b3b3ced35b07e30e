"""A llama of a few hundred thousand random weights, for a runtime under attack.

Its tokenizer has one token a byte, names for the rest of the vocabulary, and one token beyond it, as many
fine-tunes have. Its context is long enough for prompts that hold others up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from wisp_plan.families.config import parse_config
from wisp_plan.weights.tensors import expected_tensors

VOCAB = 4608
CONTEXT = 32768
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "eos_token_id": 1,
}
OUTSIDE = "[PAD]"
"""A token whose id is not below the vocabulary's size."""
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def write_model(folder: Path, *, template: str = TEMPLATE, **changes: Any) -> Path:
    """Write the checkpoint into a new folder, with fields of its config.json replaced."""
    folder.mkdir(parents=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    _tokenizer().save(str(folder / "tokenizer.json"))
    random = np.random.default_rng(7)
    tensors = {
        tensor.name: (random.standard_normal(tensor.shape) / np.sqrt(tensor.shape[-1])).astype(np.float32)
        for tensor in expected_tensors(parse_config(CONFIG))
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


def _tokenizer() -> Tokenizer:
    names = sorted(pre_tokenizers.ByteLevel.alphabet())
    names += [f"<{number}>" for number in range(len(names), VOCAB)]
    tokenizer = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(OUTSIDE, special=True)])
    return tokenizer
