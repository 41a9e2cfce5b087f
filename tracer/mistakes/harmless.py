"""Mistakes that were drawn and survive, and why nothing that is shown is wrong with them: by file and name."""

HARMLESS: dict[tuple[str, str], str] = {}
