"""Sizes as symbols: their formulas, how they are written, and what ops cost in them."""
