"""Checks of predictions and returned tensors."""
