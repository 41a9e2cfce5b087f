"""Visitor's choices, and their parameters in the address of a page."""
