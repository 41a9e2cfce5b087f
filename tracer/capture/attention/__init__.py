"""Attention in the stream of ops: its queries, keys, mask and weights."""
