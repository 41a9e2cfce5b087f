"""Lowering of the calls of a graph to the nodes of an equation."""
