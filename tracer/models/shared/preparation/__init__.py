"""Preparation of a model's input tensors from a photo or a text."""
