"""Benchmarks: what tracing costs, and what a visitor waits for."""
