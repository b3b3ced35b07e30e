"""Attention kernels: paged decode, prefill, RoPE and KV writes."""
