"""Sections of the Trace page."""
