"""Helpers that several tests use: servers, hand-written traces, small models, readers of pages."""
