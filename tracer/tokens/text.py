"""Text as tokens: ids, whichever way the text was cut, and the row of a table for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tracer.common.seeding import seeded_draws
from tracer.derive.hints import Hint
from tracer.record import Trace
from tracer.tokens import SHARED, Way, trace


class Table(nn.Module):
    """A table with a row for each entry of the vocabulary; takes ids `[B, n]`, returns their rows `[B, n, D]`."""

    def __init__(self, *, V: int, D: int):
        super().__init__()
        self.rows = nn.Embedding(V, D)

    def forward(self, tokens):
        return self.rows(tokens)  # [B, n, D]


def _build(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    B, n, V = (sizes[name] for name in ("B", "n", "V"))
    return Table(V=V, D=sizes["D"]), (torch.arange(B * n).view(B, n) % V,)


SAYS = {
    "characters": (
        "characters",
        "Each character has an id: few ids and long sequences, and what was never seen has none.",
    ),
    "words": (
        "words",
        "Each frequent word has an id: short sequences, and every other word is the same [UNK].",
    ),
    "bytes": ("bytes", "Each byte of the text in UTF-8 is its id: nothing is unknown, and sequences are long."),
    "bpe": (
        "byte-level BPE",
        "Bytes, and the most frequent pair of neighbours joined into a new entry, again and again: nothing is unknown.",
    ),
    "wordpiece": ("WordPiece", "In each word the longest entry that fits, from the left; ## goes on in a word."),
    "unigram": ("unigram", "Each entry has a probability, and the cut with the largest product is taken."),
}
"""Title and sentence of each way."""

SLIPS = (
    "Note 004 has an id for each byte in GPT-2’s tokenizer. That is **byte-level BPE**: bytes are only where merging "
    "begins. Here {bytes} bytes are {joined} tokens after {merges:,} merges, and V = 256 + {merges:,} = {V:,}. "
    "GPT-2 has 50,000 merges and one entry that ends a text, V = 50,257.",
    "Note 000 counts ids from 1 to V. Code counts from 0 to V − 1, and an id of V is refused.",
    "A vocabulary is a table: the entry with id t is **row** t of E, V × D, and X = E[t] is what a product of one-hot "
    "rows with E gives.",
    "WordPiece is said to join the pair that makes the text likeliest (Schuster and Nakajima 2012). The library that "
    "learns it here joins the most frequent pair, as BPE does; only how it cuts is WordPiece’s own.",
    "Two references of note 004 name others than the papers that they lead to: arXiv 1508.06615 is by Kim et al. "
    "(2016), not Zhang et al., and P96-1041 by Chen and Goodman (1996), not Brown et al.",
)
"""What texts say otherwise than it runs, with facts of the sentence at hand: a test looks at each."""

HINTS = (
    Hint(
        "embedding",
        title="Look up",
        letter=r"\mathbf{X}",
        why="An id is a number of a row, and its size means nothing. It picks its row of the table E, V rows of D "
        "numbers, which training arranges; here they are random.",
    ),
)
WAYS = tuple(
    Way(
        kind="text",
        name=name,
        title=title,
        says=says,
        build=_build,
        names=("V",),
        probes=({"B": 19, "n": 7, "V": 17}, {"B": 13, "n": 5, "V": 31}, {"B": 10, "n": 11, "V": 41}),
        derived={},
        hints=HINTS,
    )
    for name, (title, says) in SAYS.items()
)


def table(entries: int) -> Table:
    """A table of that many rows, seeded random numbers that learned nothing."""
    with seeded_draws(0):
        return Table(V=entries, D=SHARED["D"])


def looked_up(name: str, ids: Sequence[int], entries: int) -> Trace:
    """The run that looks up the rows of ids in a table of that many entries; `name` is the way that they come from."""
    if not ids:
        raise ValueError("a text without tokens was given, expected at least one token")
    way = next(way for way in WAYS if way.name == name)
    return trace(way, table(entries), torch.tensor([list(ids)]), V=entries, n=len(ids))
