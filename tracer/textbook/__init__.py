"""Textbook of a run: the selection of its steps, with symbol, title, role and explanation of each."""
