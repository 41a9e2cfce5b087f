"""What the texts behind the project are called: in code by number, on screen by name."""

import re

TITLES = {
    "000": "Transformer and ViT dataflow notation",
    "001": "Vision Transformers",
    "002": "Vision Transformer - Basics",
    "003": "Vision Transformer (ViT) Encoder - Low-Level Operations",
    "004": "Tokenization … Final Projection & Softmax",
}
"""The title that each text gives itself; the last has none and is called by its first and last section."""


def spelled(text: str) -> str:
    """A text with every "note 001" in it called by its title; a number that is no note's stays as it is."""
    return re.sub(r"\b([Nn])ote (\d{3})\b", lambda found: _called(found[2], found[1] == "N") or found[0], text)


def _called(number: str, first: bool) -> str:
    return f"{'The' if first else 'the'} note “{TITLES[number]}”" if number in TITLES else ""
