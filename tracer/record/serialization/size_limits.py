"""Absolute bounds of the size of a saved run, far above what ours need, so that no small file fills the memory.

What is written down once and shown many times, or multiplied with another size, is bounded here; all else costs no more
than the bytes that the file has. A file beyond them is refused before anything is computed.
"""

from __future__ import annotations

HEADER = 8 << 20
"""Bytes of a header; a run of 300 operations with primitives and symbols has half a million."""
ITEMS = 1_000_000
"""Values in a header: an empty list takes two bytes there and 64 in memory."""
MAX_ENTRIES = {
    "ops": 16_384,
    "steps": 4096,
    "symbols": 64,
    "attentions": 1024,
    "segments": 64,
    "notes": 1024,
    "changes": 256,
    "returned": 16_384,
    "words": 65_536,
    "values": 16_384,
    "decompositions": 16_384,
    "modules": 16_384,
    "calls": 16_384,
}
"""Entries of a trace's fields; the deepest models that are built have 256 blocks."""
TEXT = 4000
"""Letters of any text of a record."""
FREE_TEXT = 100_000
"""Letters of a text of the result, such as what was written."""
MAX_LETTERS = {
    **dict.fromkeys(
        (
            "module",
            "id",
            "step",
            "maker",
            "within",
            "symbol",
            "value",
            "title",
            "model",
            "q",
            "k",
            "weights",
            "path",
            "changes",
        ),
        400,
    ),
    **dict.fromkeys(
        ("op", "function", "name", "part", "stage", "dtype", "mask", "over", "after", "words", "kind"), 100
    ),
    "symbolic": 200,
    "of": 400,
}
"""Letters of what is a name, by its field: a page may show it beside every token, or every pixel."""
ITEMS_OF_A_RECORD = 8192
"""Inputs, outputs, parameters, primitives or steps of one record."""
MAX_DEPTH = 48
"""Modules within each other."""
IN_A_PART = 512
"""Steps of one block, or outside all blocks: they stand in one list."""
AXES = 12
"""Axes of a tensor."""
LINKS = 32
"""What a model does to its scores before the softmax; ours do two things."""
CELLS = 1 << 24
"""Attention weights of one query, over all heads and inputs of the batch."""
PATCHES = 10_000
"""Patches of a picture."""
MODEL_PIXELS = 1 << 22
"""Pixels of a picture as the model sees it."""
