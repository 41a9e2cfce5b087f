"""Candidate repairs of all kinds; `trials` finds those that work."""
