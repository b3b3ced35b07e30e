"""Recurrent mixers: causal convolutions, Gated DeltaNet, Mamba-2."""
