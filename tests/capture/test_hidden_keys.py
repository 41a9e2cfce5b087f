"""Tables of known facts: the keys that masks hide, the masks that are windows, and the ops that hide keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.support.drawing import check_name, drawn_alike
from tracer.capture.score_path import SCORES, closes, hides, is_windowed

INF = float("inf")


def _closing() -> Iterator[str]:
    """Check additive masks of scores: the lowest numbers, and those apart from all others."""
    numbers = {
        (0.0, -INF): [0, 1],
        (0.0, -1e4, -9.0): [0, 1, 0],
        (0.0, -1e4, -20.0, -9.0): [0, 1, 0, 0],
        (0.0, -100.0): [0, 1],
        (1.0, -16.0, -15.9): [0, 0, 0],
        (1.0, -16.0, -7.9): [0, 1, 0],
        (1.0, -16.0, -8.0): [0, 0, 0],
        (0.0, -10.0, -20.0, -30.0): [0, 0, 0, 0],
        (0.0, 5.0, 100.0): [0, 0, 0],
    }
    for given, expected in numbers.items():
        if closes(torch.tensor([given])).int().tolist() != [expected]:
            yield f"of {given} those are said to hide a key: {closes(torch.tensor([given])).int().tolist()[0]}"
    apart = torch.tensor([[a != b for b in (0, 0, 1, 1, 1)] for a in (0, 0, 1, 1, 1)])
    mixed = torch.tensor([[a != b for b in (0, 1, 0, 1, 0)] for a in (0, 1, 0, 1, 0)])
    alone, causal = ~torch.eye(5, dtype=torch.bool), torch.ones(5, 5).triu(1).bool()
    bridged, blind = apart.clone(), apart.clone()
    bridged[0, 4] = bridged[4, 0] = False
    blind[2, 2] = True
    cases = {
        "two groups": (apart, True),
        "groups that lie within each other": (mixed, True),
        "several windows": (torch.stack([apart, mixed, torch.zeros_like(apart)])[None], True),
        "tokens that are alone": (alone, False),
        "a causal mask": (causal, False),
        "a window and a causal mask": (torch.stack([apart, causal]), False),
        "all open": (torch.zeros(5, 5).bool(), False),
        "all closed": (torch.ones(5, 5).bool(), False),
        "groups with a bridge": (bridged, False),
        "one that does not see itself": (blind, False),
        "fewer queries": (apart[:3], False),
        "alone in one window": (torch.stack([alone, apart]), True),
        "windows of heads": (apart.expand(2, 3, 5, 5), True),
    }
    for what, (cells, expected) in cases.items():
        if is_windowed(cells) != expected:
            yield f"{what}: said to be windows: {is_windowed(cells)}"


def _hiding() -> Iterator[str]:
    """Check which ops hide keys."""
    upper, zero = torch.ones(3, 3).triu(1), torch.zeros(3, 3)
    kept = {"later": upper.bool(), "none": zero.bool(), "all": ~zero.bool(), "low": upper * -1e9, "high": upper * 1e9}
    kept |= {"slope": upper * -3, "of rows": torch.full((3, 1), -1e9)}
    cases = {
        ("causal", (-INF,)): True,
        ("pieces", (1, 1, 2, 2)): True,
        ("masked_fill", (SCORES, "later", -INF)): True,
        ("masked_fill", (SCORES, "none", -INF)): False,
        ("masked_fill", (SCORES, True, -INF)): True,
        ("masked_fill", (SCORES, False, -INF)): False,
        ("where", (True, SCORES, -INF)): False,
        ("where", ("later", -INF, SCORES)): True,
        ("where", ("none", -INF, SCORES)): False,
        ("where", ("all", SCORES, -INF)): False,
        ("where", ("later", SCORES, -INF)): True,
        ("add", (SCORES, "low")): True,
        ("add", ("low", SCORES)): True,
        ("add", (SCORES, "high")): False,
        ("add", (SCORES, "slope")): False,
        ("add", (SCORES, "of rows")): False,
        ("add", (SCORES, 1.0)): False,
        ("sub", (SCORES, "high")): True,
        ("sub", (SCORES, "low")): False,
        ("mul", (SCORES, "low")): False,
        ("masked_fill", (SCORES, "gone", -INF)): True,
    }
    for link, expected in cases.items():
        if hides(link, kept.get) != expected:
            yield f"{link} is said to hide keys: {hides(link, kept.get)}"


CHECKS = [_closing, _hiding]


@pytest.mark.parametrize("problems", CHECKS, ids=check_name)
def test_hidden_keys_are_those_that_are_known(problems):
    with drawn_alike():
        assert list(problems()) == []
