"""Nodes that move numbers and compute none: views, permutations, gathers, windows."""
