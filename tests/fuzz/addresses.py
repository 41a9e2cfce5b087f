"""Addresses of pages: queries that name models, samples, texts, files and steps, or similar strings."""

from pathlib import Path
from random import Random
from urllib.parse import parse_qs, quote

from tests.fuzz import mutate, pages

NAMES = {
    "model": (
        "vit",
        "vit",
        "nanogpt",
        "nanogpt",
        "VIT",
        "vit ",
        "hf:bert",
        "hf:/etc",
        "hf:../..",
        "hf:a/b",
        "timm:",
        "x:y",
    ),
    "sample": ("cat", "horse", "its own", "cat.png"),
    "text": ("To be, or not", "ROMEO:\n", "a"),
    "file": ("mine.png", "run.safetensors"),
    "step": ("patches", "block1.attention.scores", "head.logits"),
    "op": ("0", "12", "-1", "9999", "1e3", "٣"),
    "zoom": ("ops", "steps", "primitives"),
    "module": ("0", "7", "-1"),
    "block": ("1", "2", "0"),
    "head": ("0", "mean", "rollout"),
    "query": ("0", "5", "9999"),
    "mask": ("causal", "bidirectional"),
    "tied": ("False", "0"),
    "D": ("64", "0", "1e9"),
    "kind": ("text", "pictures", "video", "sound", "series", "points", "rotary", "alibi"),
    "way": ("bytes", "bpe", "codes", "tubelets", "bins"),
    "sentence": ("To be", "", "\u202e\u0301"),
    "merges": ("0", "64", "99999"),
    "length": ("8", "0", "100000"),
    "causal": ("True", "maybe"),
    "note": ("000", "004", "999"),
    "of": ("vit", "nanogpt", "x"),
    **dict.fromkeys(("token", "n", "V", "patch", "codes", "tau", "width", "heads", "section"), ("0", "3", "9999")),
}
"""Values of what an address names, the places on lesson pages among them."""
MAX_LETTERS = 2_000
"""Characters of an address: longer ones are cut before a browser sends them."""


def make_input(chance: Random, folder: Path) -> dict[str, list[str]]:
    """Return a query's parameters, as the server reads them."""
    pairs = []
    for _ in range(chance.choice((1, 2, 2, 3, 5))):
        name = chance.choice(list(NAMES)) if chance.random() < 0.95 else chance.choice(("embed", "", "x" * 500))
        known = NAMES.get(name, ("1",))
        value = (
            chance.choice(known)
            if chance.random() < 0.6
            else str(chance.choice((mutate.junk(chance), chance.choice(mutate.TEXT))))
        )
        pairs.append(f"{name}={quote(value[:MAX_LETTERS], errors='replace')}")
    query = "&".join(pairs)
    if chance.random() < 0.3:
        query = mutate.damage(query.encode(), chance).decode("latin-1")
    return parse_qs(query, keep_blank_values=True)


def open_input(address: dict[str, list[str]], chance: Random) -> dict[str, list[str]]:
    """Return the address: nothing is refused before a page is drawn."""
    return address


def show_input(address: dict[str, list[str]], chance: Random) -> None:
    """Draw the page at that address."""
    pages.draw_page(chance, address=address)
