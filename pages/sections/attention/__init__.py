"""Sections of the Attention and Mask pages."""
