"""Sections of pages, a package for each page that has several."""
