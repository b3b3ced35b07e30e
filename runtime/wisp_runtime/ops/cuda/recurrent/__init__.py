"""Recurrent mixers: causal convolutions, Gated DeltaNet."""
