"""Lesson pages, a module for each: tokens, positions, sizes, the loss and the notes."""
