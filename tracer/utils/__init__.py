"""Helpers that every layer uses: quoting, parsing, files, seeds, cores and bounds."""
