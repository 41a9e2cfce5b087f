"""Visitor's choices, and what the address of a page says of them."""
