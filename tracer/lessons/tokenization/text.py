"""Text as tokens: ids from any tokenizer, and the row of a table for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tracer.lessons.tokenization import SHARED_SIZES, Tokenization, trace
from tracer.record import Trace
from tracer.textbook.claims import Claim
from tracer.textbook.claims import predicates as so
from tracer.textbook.hints import Hint
from tracer.utils.thread_local_rng import seeded_draws


class Table(nn.Module):
    """A table with a row for each entry of the vocabulary; takes ids `[B, n]`, returns their rows `[B, n, D]`."""

    def __init__(self, *, V: int, D: int):
        super().__init__()
        self.rows = nn.Embedding(V, D)

    def forward(self, tokens) -> torch.Tensor:
        return self.rows(tokens)  # [B, n, D]


class CharacterTokens(nn.Module):
    """Characters by their code points, searched in the entries `[V]` of a vocabulary, and the rows of those.

    It takes `[B, n]` and returns `[B, n, D]`. The first entry, -1, is not a character: an unknown one gets its id.
    """

    def __init__(self, entries: Tensor, rows: Table):
        super().__init__()
        self.register_buffer("entries", entries)
        self.table = rows

    def forward(self, x) -> torch.Tensor:
        alike = (x[..., None] == self.entries).float()  # [B, n, V]
        tokens = alike.argmax(-1)  # [B, n]
        return self.table(tokens)  # [B, n, D]


def _build(sizes: dict[str, int]) -> tuple[Table, tuple[Tensor, ...]]:
    B, n, V = (sizes[name] for name in ("B", "n", "V"))
    return Table(V=V, D=sizes["D"]), (torch.arange(B * n).view(B, n) % V,)


def _build_spelled(sizes: dict[str, int]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    net, args = _build(sizes)
    return CharacterTokens(torch.arange(sizes["V"]) - 1, net), args


SAYS = {
    "characters": (
        "characters",
        "Each character has an id. There are few ids, sequences are long, and a character that was never seen has no "
        "id.",
    ),
    "words": (
        "words",
        "Each frequent word has an id. Sequences are short, and every other word becomes the same [UNK].",
    ),
    "bytes": ("bytes", "Each byte of the text in UTF-8 is an id. Nothing is unknown, and sequences are long."),
    "bpe": (
        "byte-level BPE",
        "It begins with bytes and joins the most frequent pair of neighbours into a new entry, again and again. "
        "Nothing is unknown.",
    ),
    "wordpiece": (
        "WordPiece",
        "From the left, it takes the longest entry that fits in each word; ## continues a word.",
    ),
    "unigram": ("unigram", "Each entry has a probability, and the split with the largest product is taken."),
}
"""Title and sentence of each way."""

SLIPS = (
    "Note 004 has an id for each byte in GPT-2’s tokenizer. That is **byte-level BPE**: merging only begins with "
    "bytes. Here {bytes} bytes are {joined} tokens after {merges:,} merges, and V = 256 + {merges:,} = {V:,}. "
    "GPT-2 has 50,000 merges and one entry that ends a text, V = 50,257.",
    "Note 000 counts ids from 1 to V. Code counts from 0 to V − 1, and an id of V is refused.",
    "A vocabulary is a table: the entry with id t is **row** t of E, V × D, and X = E[t] equals the product of "
    "one-hot rows with E.",
    "WordPiece is said to join the pair that makes the text likeliest (Schuster and Nakajima 2012). The library that "
    "learns it here joins the most frequent pair, as BPE does; only the way it cuts a word is WordPiece’s own.",
    "Two references of note 004 give the wrong authors: arXiv 1508.06615 is by Kim et al. "
    "(2016), not Zhang et al., and P96-1041 by Chen and Goodman (1996), not Brown et al.",
)
"""Errata of texts, with facts of the current sentence: a test checks each."""

HINTS = (
    Hint(
        "embedding",
        title="Look up",
        letter=r"\mathbf{X}",
        why=(
            Claim(
                "An id is the number of a row, and how large it is means nothing. It selects its row of the table E, "
                "V rows of D numbers. Training sets these numbers; here they are random.",
                so.equation_is("Lookup"),
            ),
        ),
    ),
)
LOOKUP_HINTS = (
    Hint("parameter *.entries", letter=r"\mathbf{v}"),
    Hint(
        "tokens.argmax",
        title="Find the entry",
        letter=r"\mathbf{t}",
        why=(
            Claim(
                "The id of a character is the index of the entry that it equals: x holds the Unicode numbers of the "
                "characters, v those of the entries. A character that equals no entry gets the first id, [UNK].",
                so.equation_is("ArgMax"),
            ),
        ),
    ),
)
WAYS = tuple(
    Tokenization(
        kind="text",
        name=name,
        title=title,
        says=says,
        build=_build_spelled if name == "characters" else _build,
        names=("V",),
        probes=({"B": 19, "n": 7, "V": 17}, {"B": 13, "n": 5, "V": 31}, {"B": 10, "n": 11, "V": 41}),
        derived={},
        hints=(*LOOKUP_HINTS, *HINTS) if name == "characters" else HINTS,
    )
    for name, (title, says) in SAYS.items()
)


def table(entries: int) -> Table:
    """Return an untrained table of that many rows, seeded random numbers."""
    with seeded_draws(0):
        return Table(V=entries, D=SHARED_SIZES["D"])


def _way(name: str) -> Tokenization:
    return next(way for way in WAYS if way.name == name)


def looked_up(name: str, ids: Sequence[int], entries: int) -> Trace:
    """Return the run that looks up the rows of ids in a table of that many entries; `name` is their tokenizer."""
    if not ids:
        raise ValueError("this text has no token, expected at least one")
    return trace(_way(name), table(entries), torch.tensor([list(ids)]), V=entries, n=len(ids))


def trace_characters(text: str, vocabulary: Sequence[str]) -> Trace:
    """Return the run that finds each character among the entries of a vocabulary, and looks up its row.

    The first entry is for all unknown characters.
    """
    if not text:
        raise ValueError("this text has no character, expected at least one")
    entries = torch.tensor([-1, *map(ord, vocabulary[1:])])
    characters = torch.tensor([list(map(ord, text))])
    return trace(
        _way("characters"), CharacterTokens(entries, table(len(entries))), characters, V=len(entries), n=len(text)
    )
