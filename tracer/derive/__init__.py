"""Equations derived from a run: calls, as PyTorch was asked for them, become nodes."""
