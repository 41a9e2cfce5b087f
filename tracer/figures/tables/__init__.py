"""Rows of the tables of operations, calls and costs."""
