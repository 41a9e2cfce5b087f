"""Sizes as symbols: their formulas, their notation, and the costs of ops in them; and axes as their factors."""
