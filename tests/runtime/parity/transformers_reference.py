"""Random weights for a config.json, and what transformers computes with them. Run by a Python with torch.

``transformers_reference.py FOLDER JOB.json``: writes ``model.safetensors`` beside the config (as transformers
saves it, or in MXFP4), and ``streams.npz``: for each length the stream before each layer, and the logits, of
which long prompts keep the last; ``greedy``, the tokens after the first prompt.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

KEPT_ROWS = 64
"""Last positions of a prompt that are compared."""

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
GROUP = 32


def main() -> None:
    folder, job = Path(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(2)
    config = transformers.AutoConfig.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    randomize(model, job["is_mxfp4"])
    published = (folder / "config.json").read_text()
    model.save_pretrained(folder)
    (folder / "config.json").write_text(published)  # as the authors write it, not as transformers does
    if job["is_mxfp4"]:
        store_mxfp4(folder / "model.safetensors")
    found = {}
    with torch.no_grad():
        for length in job["lengths"]:
            run = model(torch.tensor([job["tokens"][:length]]), output_hidden_states=True)
            kept = slice(-KEPT_ROWS, None)
            streams = torch.stack(run.hidden_states[:-1])[:, 0, kept]  # the last of all is normed
            found[f"streams_{length}"], found[f"logits_{length}"] = (
                streams.numpy(),
                run.logits[0, kept].numpy(),
            )
        found["greedy"] = greedy(model, job["tokens"][: job["prompt_tokens"]], job["greedy_tokens"])
    np.savez(folder / "streams.npz", **found)


def greedy(model, tokens: list[int], count: int) -> np.ndarray:
    """Return the tokens that follow, each the most likely, and how far each leads the second."""
    written = []
    run = model(torch.tensor([tokens]), use_cache=True)
    for _ in range(count):
        best = run.logits[0, -1].topk(2)
        written.append((int(best.indices[0]), float(best.values[0] - best.values[1])))
        run = model(best.indices[:1][None], past_key_values=run.past_key_values, use_cache=True)
    return np.array(written)


def randomize(model, is_mxfp4: bool) -> None:
    """Fill the parameters with numbers at which attention is neither flat nor a single key."""
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(*_distribution(name, parameter), generator=generator)
            if is_mxfp4 and parameter.ndim == 3:
                parameter.copy_(rounded(parameter.transpose(1, 2))[0].transpose(1, 2))


_GAINS = {"q_proj": 1.5, "k_proj": 1.5, "o_proj": 2.0, "embed": 20.0, "router": 2.0, "lm_head": 4.0}


def _distribution(name: str, parameter) -> tuple[float, float]:
    """Return mean and deviation."""
    if "norm" in name:
        return 1.0, 0.15
    if name.endswith(("bias", "sinks")):
        return 0.0, 0.5
    inputs = parameter.shape[-2] if parameter.ndim == 3 else parameter.shape[-1]  # experts are [E, in, out]
    gain = next((gain for part, gain in _GAINS.items() if part in name), 1.0)
    return 0.0, gain / math.sqrt(inputs)


def rounded(rows):
    """Return rows ``[E, out, in]`` rounded to MXFP4, and their codes and scales as bytes."""
    groups = rows.reshape(*rows.shape[:-1], -1, GROUP)
    exponents = torch.floor(torch.log2(groups.abs().amax(dim=-1, keepdim=True))) - 2
    scaled = groups / torch.exp2(exponents)
    codes = (scaled.abs()[..., None] - E2M1).abs().argmin(dim=-1)
    values = E2M1[codes] * scaled.sign() * torch.exp2(exponents)
    codes = codes + 8 * (scaled < 0)
    octets = (codes[..., ::2] | codes[..., 1::2] << 4).to(torch.uint8)
    return values.reshape(rows.shape), octets, (exponents[..., 0] + 127).to(torch.uint8)


def store_mxfp4(file: Path) -> None:
    """Store experts as gpt-oss's authors do."""
    tensors = load_file(file)
    for name in [name for name, tensor in tensors.items() if tensor.ndim == 3]:
        _, tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = rounded(tensors.pop(name).transpose(1, 2))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)


if __name__ == "__main__":
    main()
