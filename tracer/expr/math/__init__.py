"""Nodes of arithmetic, functions, reductions and comparisons."""
