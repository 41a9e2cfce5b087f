"""Six text tokenizers learned on one text: characters to subwords.

Those of subwords are the `tokenizers` library's. Each has an unknown token, or, with bytes, needs none. Nothing here
imports torch.
"""

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

from tracer.utils.error_text import quote

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # read when a tokenizer first runs: visitors share few cores

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

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


class Characters:
    """A vocabulary of every character of the training text."""

    def __init__(self, corpus: str):
        self.vocabulary = (UNKNOWN, *sorted(set(corpus)))
        self._ids = {entry: number for number, entry in enumerate(self.vocabulary)}

    def encode(self, text: str) -> tuple[TokenSpan, ...]:
        numbers = (self._ids.get(character, 0) for character in text)
        return tuple(TokenSpan(id, self.vocabulary[id], at, at + 1) for at, id in enumerate(numbers))

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.vocabulary[id] for id in ids)


class Words:
    """A vocabulary of the most frequent words, and runs of signs, split at blanks and between signs and letters."""

    CUT = re.compile(r"\w+|[^\w\s]+")

    def __init__(self, corpus: str):
        counts = Counter(self.CUT.findall(corpus))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        self.vocabulary = (UNKNOWN, *ranked[: ENTRIES - 1])
        self._ids = {entry: number for number, entry in enumerate(self.vocabulary)}

    def encode(self, text: str) -> tuple[TokenSpan, ...]:
        matches = ((self._ids.get(word[0], 0), *word.span()) for word in self.CUT.finditer(text))
        return tuple(TokenSpan(id, self.vocabulary[id], start, end) for id, start, end in matches)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(self.vocabulary[id] for id in ids)


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


WAYS: dict[str, Callable[[str], TextTokenizer]] = {
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
    return {name: build(corpus) for name, build in WAYS.items()}


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
