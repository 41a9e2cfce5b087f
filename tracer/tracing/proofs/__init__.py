"""Proofs of the lines of a run: on its own tensors, and on runs that they were not derived from."""
