"""Recurrent mixers on the host, prompts in chunks: Gated DeltaNet, Mamba-2."""
