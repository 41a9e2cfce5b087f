"""Passes over the graph of a run: each takes a graph and returns a rewritten graph."""
