"""Text as tokens: ids from any tokenizer, and the row of a table for each."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache, cached_property
from importlib import resources
from typing import Protocol

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from tracer.lessons.tokenization import SHARED_SIZES, Tokenization, trace
from tracer.record import Trace
from tracer.spec.spec import build_seeded
from tracer.textbook.claims import claim
from tracer.textbook.names import Hint
from tracer.utils.errors import quote

# Six text tokenizers learned on one text: characters to subwords.
#
# Those of subwords are the `tokenizers` library's. Each has an unknown token, or, with bytes, needs none. Nothing here
# imports torch.

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read when a tokenizer first runs: visitors share few cores


UNKNOWN = "[UNK]"
ENTRIES = 1000
"""Entries of each vocabulary that is learned, the unknown one with them: the size that they are compared at."""
BYTES = 256
MERGES = ENTRIES - BYTES
"""Merges that byte-level BPE learns; the first k of them are those that it would have learned, had it stopped there."""
MIN_LETTERS, MAX_LETTERS = 100, 20_000
"""Characters of a visitor's text that can be learned from."""
SIGNS = 3000
"""Different characters of such a text."""
LINE = 500
"""Characters that are learned from together: one word without an end would take long."""


@dataclass(frozen=True)
class TokenSpan:
    """A token: its id, the entry of the vocabulary, and its characters of the text, `text[start:end]`.

    `raw` are its bytes, if it consists of bytes, which need not be whole characters.
    """

    id: int
    entry: str
    start: int
    end: int
    raw: bytes | None = None


class TextTokenizer(Protocol):
    """A tokenizer of texts."""

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Entries, by their ids from 0."""

    def encode(self, text: str) -> tuple[TokenSpan, ...]:
        """Return the tokens of a text, in order."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text that these ids decode to."""


def room(corpus: str) -> int:
    """Return the number of entries for subwords: more if a text has so many characters that they fill the table."""
    return max(ENTRIES, 3 * len(set(corpus)))


def lines(corpus: str) -> list[str]:
    """Return the lines of a text with their ends, long ones in parts."""
    return [line[at : at + LINE] for line in corpus.splitlines(keepends=True) for at in range(0, len(line), LINE)]


class _Pieces:
    """A tokenizer that cuts a text by an expression; each piece is an entry of the vocabulary, or unknown."""

    CUT: re.Pattern[str]
    BETWEEN = ""
    """What stands between two pieces of a decoded text."""

    def __init__(self, entries: Sequence[str]):
        self.vocabulary = (UNKNOWN, *entries)
        self._ids = {entry: number for number, entry in enumerate(self.vocabulary)}

    def encode(self, text: str) -> tuple[TokenSpan, ...]:
        matches = ((self._ids.get(piece[0], 0), *piece.span()) for piece in self.CUT.finditer(text))
        return tuple(TokenSpan(id, self.vocabulary[id], start, end) for id, start, end in matches)

    def decode(self, ids: Sequence[int]) -> str:
        return self.BETWEEN.join(self.vocabulary[id] for id in ids)


class Characters(_Pieces):
    """A vocabulary of every character of the training text."""

    CUT = re.compile(".", re.DOTALL)

    def __init__(self, corpus: str):
        super().__init__(sorted(set(corpus)))


class Words(_Pieces):
    """A vocabulary of the most frequent words, and runs of signs, split at blanks and between signs and letters."""

    CUT = re.compile(r"\w+|[^\w\s]+")
    BETWEEN = " "

    def __init__(self, corpus: str):
        counts = Counter(self.CUT.findall(corpus))
        super().__init__(sorted(counts, key=lambda word: (-counts[word], word))[: ENTRIES - 1])


class Bytes:
    """Bytes of the text in UTF-8: 256 entries, whatever the language, and nothing to learn."""

    vocabulary = tuple(f"0x{byte:02X}" for byte in range(BYTES))

    def encode(self, text: str) -> tuple[TokenSpan, ...]:
        pieces = []
        for at, character in enumerate(text):
            for byte in character.encode():
                pieces.append(TokenSpan(byte, self.vocabulary[byte], at, at + 1, bytes([byte])))
        return tuple(pieces)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


@cache
def _alphabet() -> dict[str, int]:
    """Return the characters that stand for bytes in GPT-2, each visible (Radford et al. 2019)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(BYTES) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(BYTES + at): byte for at, byte in enumerate(others)}


class _Learned:
    """A tokenizer of the library."""

    tokenizer: Tokenizer

    @cached_property
    def vocabulary(self) -> tuple[str, ...]:
        entries = self.tokenizer.get_vocab(with_added_tokens=True)
        return tuple(sorted(entries, key=entries.__getitem__))

    def encode(self, text: str) -> tuple[TokenSpan, ...]:
        encoding = self.tokenizer.encode(text)
        return tuple(
            TokenSpan(id, self.vocabulary[id], *span, self.raw(self.vocabulary[id]))
            for id, span in zip(encoding.ids, encoding.offsets, strict=True)
        )

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def raw(self, entry: str) -> bytes | None:
        """Return the bytes of an entry, or None if entries are not bytes."""
        return None


class BytePairs(_Learned):
    """Byte-level BPE, GPT-2's: the text as bytes, and the most frequent pair of neighbours merged, again and again.

    Sources: Sennrich et al. 2016, section 3.2; Radford et al. 2019, section 2.2, for bytes and the cut before merging.
    """

    def __init__(self, corpus: str, merges: int = MERGES):
        trainer = trainers.BpeTrainer(
            vocab_size=BYTES + merges, initial_alphabet=sorted(_alphabet()), show_progress=False, special_tokens=[]
        )
        self._set(models.BPE())
        self.tokenizer.train_from_iterator(lines(corpus), trainer)

    def _set(self, model: models.Model) -> None:
        self.tokenizer = Tokenizer(model)
        self.tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.tokenizer.decoder = decoders.ByteLevel()

    @cached_property
    def merges(self) -> tuple[tuple[str, str], ...]:
        """Merged pairs, in order."""
        merges = json.loads(self.tokenizer.to_str())["model"]["merges"]
        return tuple(tuple(pair) if isinstance(pair, list) else tuple(pair.split(" ")) for pair in merges)

    def first(self, count: int) -> BytePairs:
        """Return the tokenizer after that many merges."""
        merges = self.merges[:count]
        known = dict(zip(self.vocabulary[: BYTES + len(merges)], range(BYTES + len(merges)), strict=True))
        shortened = BytePairs.__new__(BytePairs)
        shortened._set(models.BPE(vocab=known, merges=list(merges)))
        return shortened

    def raw(self, entry: str) -> bytes:
        return bytes(_alphabet()[sign] for sign in entry)


class WordPieces(_Learned):
    """WordPiece, BERT's: in each word the longest entry that fits, from the left; `##` goes on in a word.

    Words are cut at blanks and signs before; one of which any part fits no entry is unknown as a whole (Devlin et al.
    2019). The library learns the entries by joining the most frequent pair, as BPE does; Schuster and Nakajima 2012
    take the pair that makes the text likeliest.
    """

    def __init__(self, corpus: str):
        self._set(models.WordPiece(unk_token=UNKNOWN))
        inner = sorted({f"##{character}" for character in corpus if not character.isspace()})
        # those that go on are named in order: the library meets them in another one each time it runs
        trainer = trainers.WordPieceTrainer(
            vocab_size=room(corpus), special_tokens=[UNKNOWN, *inner], show_progress=False
        )
        self.tokenizer.train_from_iterator(lines(corpus), trainer)
        self._set(models.WordPiece(self.tokenizer.get_vocab(), unk_token=UNKNOWN, max_input_chars_per_word=100))

    def _set(self, model: models.Model) -> None:
        self.tokenizer = Tokenizer(model)
        self.tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
        self.tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self.tokenizer.decoder = decoders.WordPiece(cleanup=False)


class Unigrams(_Learned):
    """Unigram, SentencePiece's: each entry has a probability, and the segmentation with the largest product wins.

    Blanks are a sign, `▁`, and belong to the piece after them. Source: Kudo 2018, section 3.2. Entries stand in the
    order of the alphabet, their logarithms are rounded: the library sums them in another order each time it runs.
    """

    def __init__(self, corpus: str):
        self._set(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=room(corpus), unk_token=UNKNOWN, special_tokens=[UNKNOWN], show_progress=False
        )
        self.tokenizer.train_from_iterator(lines(corpus), trainer)
        vocabulary = json.loads(self.tokenizer.to_str())["model"]["vocab"]
        known = sorted((entry, round(score, 2)) for entry, score in vocabulary if entry != UNKNOWN)
        self._set(models.Unigram([(UNKNOWN, 0.0), *known], unk_id=0))

    def _set(self, model: models.Model) -> None:
        self.tokenizer = Tokenizer(model)
        self.tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        self.tokenizer.decoder = decoders.Metaspace()


TOKENIZERS: dict[str, Callable[[str], TextTokenizer]] = {
    "characters": Characters,
    "words": Words,
    "bytes": lambda corpus: Bytes(),
    "bpe": BytePairs,
    "wordpiece": WordPieces,
    "unigram": Unigrams,
}
"""The six ways by the names that addresses have, and how each is learned on a text."""


def learn(corpus: str) -> dict[str, TextTokenizer]:
    """Return the six tokenizers, learned on a text."""
    return {name: build(corpus) for name, build in TOKENIZERS.items()}


def check_corpus(corpus: str) -> str:
    """Validate a visitor's text to learn from, and return it.

    Raise ValueError in one sentence for a text that nothing can be learned from.
    """
    corpus = clean(corpus)
    if not MIN_LETTERS <= len(corpus.strip()) <= MAX_LETTERS:
        refusal = f"has {len(corpus.strip()):,} characters, expected {MIN_LETTERS} to {MAX_LETTERS:,} to learn from"
        raise ValueError(f"{quote(corpus)} {refusal}")
    if (signs := len(set(corpus))) > SIGNS:
        raise ValueError(f"{quote(corpus)} has {signs:,} different characters, expected at most {SIGNS:,}")
    return corpus


@cache
def shipped_tokenizers() -> dict[str, TextTokenizer]:
    """Return the six tokenizers, learned on the shipped text."""
    return learn(shipped_text())


@cache
def shipped_text() -> str:
    """Return the beginning of the plays that nanogpt was trained on."""
    return resources.files("tracer.inputs").joinpath("texts", "shakespeare.txt").read_text(encoding="utf-8")


def clean(text: str) -> str:
    """Return a text that UTF-8 can encode: half of a surrogate pair is not a character."""
    return text.encode("utf-8", "replace").decode("utf-8")


def differences(text: str, spelled: str) -> list[tuple[str, str]]:
    """Return the parts of a text that decoding does not recover: pairs of the original and the decoded part."""
    opcodes = SequenceMatcher(None, text, spelled, autojunk=False).get_opcodes()
    return [(text[a:b], spelled[c:d]) for kind, a, b, c, d in opcodes if kind != "equal"]


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

    def __init__(self, entries: Tensor, rows: nn.Module):
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
        why=claim(
            "An id is the number of a row, and how large it is means nothing. It selects its row of the table E, "
            "V rows of D numbers. Training sets these numbers; here they are random.",
            "Lookup",
        ),
    ),
)
LOOKUP_HINTS = (
    Hint("parameter *.entries", letter=r"\mathbf{v}"),
    Hint(
        "tokens.argmax",
        title="Find the entry",
        letter=r"\mathbf{t}",
        why=claim(
            "The id of a character is the index of the entry that it equals: x holds the Unicode numbers of the "
            "characters, v those of the entries. A character that equals no entry gets the first id, [UNK].",
            "ArgMax",
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


def table(entries: int) -> nn.Module:
    """Return an untrained table of that many rows, seeded random numbers."""
    return build_seeded(Table, {"V": entries, "D": SHARED_SIZES["D"]})


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
