"""Cards: facts on weights, in a file beside them."""

from __future__ import annotations

import json
from importlib.resources.abc import Traversable
from pathlib import Path

from tracer.utils.errors import quote


def card_of(text: bytes, file: Traversable | Path) -> dict:
    """Return the card in a file: JSON, with the sizes of the weights under "sizes".

    Raise ValueError in one sentence that names the file if it is anything else.
    """
    name = quote(file)
    try:
        card = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError):
        raise ValueError(f"can't read the card {name}: expected JSON") from None
    if not isinstance(card, dict) or not isinstance(card.get("sizes"), dict):
        raise ValueError(f'no sizes on the card {name}: expected them under "sizes"')
    sizes, options = card["sizes"], card.get("options", {})
    if not all(type(size) is int and size > 0 for size in sizes.values()):
        raise ValueError(f'can\'t read the card {name}: expected whole numbers under "sizes"')
    if not isinstance(options, dict):
        raise ValueError(f'can\'t read the card {name}: expected choices by name under "options"')
    return card
