"""Answers of two runs: the first answer of each, and the probability of each name in both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

NAMES = {"classes": "classes", "next": "tokens", "caption": "tokens", "sentences": "sentences", "labels": "classes"}
"""By the kind of a result, the key of the names that have a probability, or a share of the picture, each."""
SHARES = {"labels": "shares"}
TEXTS = {"caption": "caption", "tokens": "tokens"}
"""By the kind of a result, the key of what it says as a whole."""


class AnswerShare(NamedTuple):
    """Probability of a name in both runs, 0 to 1; None where a run does not list it."""

    name: str
    a: float | None
    b: float | None


class Answers(NamedTuple):
    """Answers of two runs, and the probabilities of the names that they rank, the likeliest first."""

    a: str
    b: str
    shares: tuple[AnswerShare, ...] = ()

    @property
    def same(self) -> bool:
        """True if both runs answer the same."""
        return self.a == self.b


def compare_answers(a: Mapping[str, Any], b: Mapping[str, Any]) -> Answers | None:
    """Return the answers of two results (`Trace.result`); None where one of them has none in words, or can't be
    read."""
    try:
        first, second = _shares(a), _shares(b)
        texts = _answer_text(a, first), _answer_text(b, second)
    except (KeyError, TypeError, ValueError):  # the result of a file, whose fields nobody checked
        return None
    if None in texts:
        return None
    names = dict.fromkeys((*first, *second))
    ranked = sorted(names, key=lambda name: -max(first.get(name) or 0, second.get(name) or 0))
    return Answers(
        str(texts[0]), str(texts[1]), tuple(AnswerShare(name, first.get(name), second.get(name)) for name in ranked)
    )


def _shares(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the probability of each name that a result ranks; of equal names the first."""
    kind = str(result.get("kind"))
    if kind not in NAMES:
        return {}
    pairs = zip(result[NAMES[kind]], result[SHARES.get(kind, "probabilities")], strict=True)
    return {str(name): float(share) for name, share in reversed(list(pairs))}


def _answer_text(result: Mapping[str, Any], shares: Mapping[str, float]) -> str | None:
    """Return the first answer of a result; None where it has none in words."""
    kind = str(result.get("kind"))
    if kind in TEXTS:
        answer = result[TEXTS[kind]]
        return (
            answer if isinstance(answer, str) else ("" if all(len(part) == 1 for part in answer) else " ").join(answer)
        )
    return max(shares, key=lambda name: shares[name]) if shares else None
