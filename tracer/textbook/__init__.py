"""The textbook of a run: which values get a line, and its symbol, title, role and reason."""
