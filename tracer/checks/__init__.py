"""Checks of what a trace shows, by code that shares nothing with what made it."""
