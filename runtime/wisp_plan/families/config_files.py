"""Files that hold the config of a checkpoint; a leaf, for readers that need the names alone."""

from __future__ import annotations

CONFIG_FILE = "config.json"
MAX_CONFIG_BYTES = 1 << 20

OWN_FILES = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""Files of older checkpoints with the section that ``config.json`` lacks; their method if they name none."""
