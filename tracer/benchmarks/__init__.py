"""Benchmarks: the cost of tracing, and the time that a visitor waits."""
