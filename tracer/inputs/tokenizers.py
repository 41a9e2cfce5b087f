"""A tokenizer from text to token numbers and back: characters, or words with a token that begins the sentence."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.utils.error_text import quote


class Characters:
    """A tokenizer of characters: each of the vocabulary is a token; numbers count from 0."""

    def __init__(self, vocabulary: str):
        self.vocabulary = vocabulary
        self._numbers = {character: number for number, character in enumerate(vocabulary)}

    def encode(self, text: str) -> list[int]:
        """Return the token numbers of a text. ValueError quotes the first character that the model does not know."""
        for character in text:
            if character not in self._numbers:
                raise ValueError(
                    f"{quote(text)} contains {quote(character)}, which is not one of the {len(self.vocabulary)} "
                    f"characters that the model knows"
                )
        return [self._numbers[character] for character in text]

    def words(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Return the tokens as text, one by one."""
        return tuple(self.vocabulary[number] for number in numbers)

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the text of these tokens."""
        return "".join(self.words(numbers))


class Words:
    """A tokenizer of words: each of the vocabulary is a token; the first entry begins a sentence, the second ends
    it."""

    def __init__(self, vocabulary: Sequence[str]):
        self.vocabulary = tuple(vocabulary)
        self._numbers = {word: number for number, word in enumerate(self.vocabulary)}

    def encode(self, text: str) -> list[int]:
        """Return the token numbers of a sentence. ValueError quotes the first word that the model does not know."""
        words = text.lower().replace(",", " ").replace(".", " ").split()
        for word in words:
            if word not in self._numbers:
                raise ValueError(
                    f"{quote(text)} contains {quote(word)}, which is not one of the {len(self.vocabulary[2:])} words "
                    "that "
                    f"the model knows: {', '.join(self.vocabulary[2:])}"
                )
        return [self._numbers[word] for word in words]

    def words(self, numbers: Sequence[int]) -> tuple[str, ...]:
        """Return the tokens as words, one by one."""
        return tuple(self.vocabulary[number] for number in numbers)

    def decode(self, numbers: Sequence[int]) -> str:
        """Return the sentence of these tokens, without its begin and end."""
        return " ".join(self.vocabulary[number] for number in numbers if number > 1)
