"""Sections of the overview."""
