"""Checks of the ops, shapes, costs and modules of a run."""
