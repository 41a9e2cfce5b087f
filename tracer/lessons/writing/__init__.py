"""Computations of the lesson on writing: the choice of a token, what a cache saves, and what padding does."""
