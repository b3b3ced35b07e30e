"""GGUF files: header, config of the model, its tensors under the names of its family's checkpoints."""
