"""Figures of inputs with a time or a third axis, and of the tokens that they are cut into."""
