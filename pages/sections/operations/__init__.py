"""Sections of the Operations page."""
