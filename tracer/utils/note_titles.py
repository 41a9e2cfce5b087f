"""Titles of the notes behind the project: code uses their numbers, the screen their names."""

import re

TITLES = {
    "000": "Transformer and ViT dataflow notation",
    "001": "Vision Transformers",
    "002": "Vision Transformer - Basics",
    "003": "Vision Transformer (ViT) Encoder - Low-Level Operations",
    "004": "Tokenization … Final Projection & Softmax",
}
"""The title that each text gives itself; the last has none and is called by its first and last section."""


def with_titles(text: str) -> str:
    """Replace every "note 001" in a text by its title; numbers of no note stay."""
    return re.sub(r"\b([Nn])ote (\d{3})\b", lambda match: _title(match[2], match[1] == "N") or match[0], text)


def _title(number: str, first: bool) -> str:
    return f"{'The' if first else 'the'} note “{TITLES[number]}”" if number in TITLES else ""
