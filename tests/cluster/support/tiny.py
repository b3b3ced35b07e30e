"""A llama of a hundred thousand random weights, with a byte tokenizer: it never stops, and means nothing."""

import json

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from wisp_plan.families.config import parse_config
from wisp_plan.weights.tensors import expected_tensors

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
}
TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def write_tiny(folder):
    """Write the checkpoint into a new ``folder``, the same at every call; gives its number of parameters."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    _tokenizer().save(str(folder / "tokenizer.json"))
    random = np.random.default_rng(7)
    tensors = {
        tensor.name: (random.standard_normal(tensor.shape) / np.sqrt(tensor.shape[-1])).astype(np.float32)
        for tensor in expected_tensors(parse_config(CONFIG))
    }
    tensors |= {name: np.ones_like(value) for name, value in tensors.items() if value.ndim == 1}
    save_file(tensors, folder / "model.safetensors")
    return sum(value.size for value in tensors.values())


def _tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)])
    return tokenizer
