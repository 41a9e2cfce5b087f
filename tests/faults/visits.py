"""Faults under a visitor."""
