"""Tensors of a run: which are kept, which op produced each, and what a module held before."""
