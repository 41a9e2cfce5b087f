"""Shared parts of our models: the block, inputs and results, weights from files, text generation."""
