"""Checks of printed equations, symbols and sentences."""
