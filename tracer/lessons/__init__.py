"""Lessons: runs of their own, with the proofs that the page shows."""
