"""Checks of the code itself, run once in each process."""
