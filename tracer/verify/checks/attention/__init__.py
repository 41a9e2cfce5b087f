"""Checks of attention weights, masks and ablations."""
