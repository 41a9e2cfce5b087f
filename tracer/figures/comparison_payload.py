"""Two runs for drawing in the browser: every pair of steps, their equations with the differences marked,
maps."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any, NamedTuple

import numpy as np

from tracer.attention import layers
from tracer.comparison import Comparison, EquationRelation, LayerAttention, LinePair, Relation
from tracer.figures.drawing import ROWS, can_draw, stage_colour, tables
from tracer.figures.envelope import compress, pack
from tracer.figures.equations import mark_differences
from tracer.figures.tensors import as_array, reduce
from tracer.record import CHANGED_SUFFIX, AttentionRecord, Step, Trace
from tracer.symbols import notation
from tracer.utils.text import percent, shape_numbers, three_digits

LETTERS = 1200
"""Letters of an equation that is sent; a longer one is left out."""
SIDE = 96
"""Rows and columns of a map at most; a larger one is reduced."""
MAPS = 1_500_000
"""Bytes of all maps together."""
SIDES = ("left", "right")


class ComparisonPayload(NamedTuple):
    """Packed comparison, and its outcome in sentences."""

    packed: bytes
    summary: tuple[str, ...]

    def weight(self) -> int:
        """Return the approximate size of the payload in bytes."""
        return len(self.packed) + sum(map(len, self.summary))


def build(comparison: Comparison) -> ComparisonPayload:
    """Return a comparison for drawing: its pairs of steps, the maps of its layers, and their colours."""
    maps, places = _maps(comparison)
    shown = comparison.rows[:ROWS]
    names = frozenset(name for run in (comparison.a, comparison.b) for name in _letters(run))
    facts = {
        "rows": [_row(row, names) | {"map": _map_of(row, maps, places)} for row in shown],
        "first": next((at for at, row in enumerate(shown) if row is comparison.first), -1),
        "left_out": len(comparison.rows) - len(shown),
        "maps": maps,
        "colours": tables(panel["scale"] for drawn in maps for panel in drawn["panels"]),
    }
    return ComparisonPayload(pack(facts), tuple(summary(comparison)))


def _letters(trace: Trace) -> Iterator[str]:
    for step in trace.steps:
        yield step.symbol
        yield from (name.symbol for name in step.names)


def summary(comparison: Comparison) -> Iterator[str]:
    """Yield the outcome of a comparison, in sentences."""
    pairs = [row for row in comparison.rows if not row.alone]
    count = len(pairs)
    if not comparison.rows:
        yield "These runs have no steps that could be compared."
        return
    parts = [
        (sum(row.values.relation is Relation.IDENTICAL for row in pairs), "equal bit by bit"),
        (sum(row.values.relation is Relation.ROUNDING for row in pairs), "equal up to rounding"),
        (sum(row.values.relation is Relation.PERMUTED for row in pairs), "equal up to a permutation"),
        (sum(row.values.relation is Relation.DIFFERENT for row in pairs), "different"),
        (sum(row.values.relation is Relation.SHAPES for row in pairs), "of different shapes"),
        (sum(row.values.relation is Relation.MISSING for row in pairs), "not kept in both runs"),
    ]
    phrases = [f"{number:,} {'is' if number == 1 else 'are'} {what}" for number, what in parts if number]
    summary = f"{count:,} step{'s' * (count != 1)} of both runs {'is' if count == 1 else 'are'} aligned"
    yield f"{summary}: {_enumerate_parts(phrases)}." if phrases else f"{summary}."
    spelled = sum(row.equations is EquationRelation.RESPELLED for row in pairs)
    different = sum(row.equations is EquationRelation.DIFFERENT for row in pairs)
    if not different:
        yield f"All {count:,} equations are mathematically the same." if count else "No equations can be compared."
    else:
        yield f"{different:,} of their equations {'differs' if different == 1 else 'differ'} mathematically" + (
            f", and {spelled:,} {'is' if spelled == 1 else 'are'} the same, written differently." if spelled else "."
        )
    for side, run in zip(SIDES, ("b", "a"), strict=True):
        if alone := sum(getattr(row, run) is None for row in comparison.rows):
            yield f"{alone:,} step{'s are' if alone > 1 else ' is'} on the {side} only."


def _enumerate_parts(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _row(row: LinePair, names: frozenset[str]) -> dict[str, Any]:
    step, values = row.step, row.values
    sides = row.a or row.beside, row.b or row.beside
    marked = [side and _latex(side) for side in sides]
    if row.a and row.b and row.equations is not EquationRelation.SAME and None not in marked:
        marked = list(mark_differences(row.a.latex, row.b.latex, names))
    return {
        "id": step.id,
        "title": step.title,
        "stage": step.stage,
        "colour": stage_colour(step.stage),
        "block": None if step.layer is None else step.layer + 1,
        "relation": values.relation.name.lower() if not row.alone or values.difference is None else "different",
        "alone": "" if not row.alone else SIDES[row.a is None],
        "share": None if values.relative is None else min(values.relative, 1e30),
        "differs": row.differs,
        "differences": [_values_text(row), _equations_text(row), _shapes_text(row)],
        "sides": [
            side and {"latex": latex or "", "id": side.id, "inside": _inside(side)}
            for side, latex in zip(sides, marked, strict=True)
        ],
    }


def _around(step: Step) -> str:
    """Return the id of the module around a step: "block3.attention"."""
    return step.id.removesuffix(CHANGED_SUFFIX).rpartition(".")[0]


def _latex(step: Step) -> str | None:
    return step.latex if len(step.latex) <= LETTERS else None


def _inside(step: Step) -> str:
    """Return the symbol with its shape, in symbols and in numbers."""
    if not step.shape:
        return rf"{step.symbol} \text{{ is a number}}"
    return rf"{step.symbol} \in {notation.shape_latex(step.symbolic)} = {shape_numbers(step.shape)}"


def _values_text(row: LinePair) -> str:
    """Describe the relation of the values of a pair in a sentence."""
    values, its = row.values, "The values are"
    if row.alone:
        side = SIDES[row.a is None]
        if values.relative is None:
            return f"This step is on the {side} only."
        its = (
            f"This step is on the {side} only: a change put it in. Compared with the step whose value it changes, its "
            "values are"
        )
    relation = values.relation
    if relation is Relation.IDENTICAL:
        return f"{its} equal bit by bit."
    if values.difference == inf:
        return f"{its} different: some are infinite, or not numbers, on one side only."
    if relation in (Relation.ROUNDING, Relation.DIFFERENT):
        verdict = "equal up to rounding" if relation is Relation.ROUNDING else "different"
        return (
            f"{its} {verdict}: the largest difference is "
            f"{three_digits(values.difference or 0)}, {_share(values.relative)} of the largest on the left."
        )
    if relation is Relation.PERMUTED:
        return f"{its} equal up to a permutation: {values.note}."
    if relation is Relation.SHAPES:
        return "The shapes differ, so the values can’t be subtracted."
    if "fused" in values.note:
        return "In both runs, the values are inside a fused operation, which never stores them."
    return "The values were not kept in at least one of the runs."


def _equations_text(row: LinePair) -> str:
    return {
        None: "",
        EquationRelation.SAME: "The equations have the same text.",
        EquationRelation.RESPELLED: "The equations are written differently, but mathematically the same.",
        EquationRelation.DIFFERENT: "The equations differ mathematically.",
        EquationRelation.UNREAD: (
            "The equations are written differently; whether they are mathematically the same is not known."
        ),
    }[row.equations]


def _shapes_text(row: LinePair) -> str:
    if row.alone or (row.same_shape and row.same_symbols):
        return ""
    if row.same_symbols:
        return "The shape is the same in symbols, with other numbers."
    return (
        "The shape has the same numbers, but other symbols." if row.same_shape else "The shape differs in symbols, too."
    )


def _share(value: float | None) -> str:
    if value is None:
        return "0"
    return (
        f"{three_digits(value)} times" if value >= 10 else three_digits(value) if 0 < value < 1e-4 else percent(value)
    )


def _maps(comparison: Comparison) -> tuple[list[dict], dict[str, int]]:
    """Return the maps of each layer of both runs, and the number of the map for the steps around it."""
    maps: list[dict] = []
    places: dict[str, int] = {}
    size = 0
    for attention in comparison.attention:
        if (pair := _weights(attention)) is None:
            continue
        panels = []
        for weights, low, high, scale in _panels(*pair):
            cells = compress(weights)
            panels.append({"ends": [low, high], "scale": scale, "cells": cells})
            size += cells.nbytes
        differ = attention.values.difference
        caption = "" if differ is None else f"the largest difference in any head is {three_digits(differ)}"
        for run, part in attention.towers:
            records = layers(run, part)
            places |= {_around(step): len(maps) for step in run.steps if _computes(step, records[attention.layer])}
        maps.append(
            {
                "block": attention.layer + 1,
                "panels": panels,
                "caption": caption,
                "differs": attention.values.relation.differs,
            }
        )
        if size > MAPS:
            break
    return maps, places


def _map_of(row: LinePair, maps: list[dict], places: dict[str, int]) -> int | None:
    """Return the number of the map of a step; none for a step before the one in its block that makes the maps
    differ."""
    number = places.get(_around(row.step))
    hidden = number is not None and maps[number]["differs"] and row.values.relation.equal and not row.alone
    return None if hidden else number


def _panels(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, float, float, str]]:
    """Yield the maps of both runs on one scale, and their difference, with the ends and the kind of its scale."""
    high = float(max(np.nanmax(a), np.nanmax(b))) or 1.0
    yield from ((weights, 0.0, high, "attention") for weights in (a, b))
    if a.shape == b.shape:
        edge = float(np.nanmax(np.abs(b - a))) or 1.0
        yield b - a, -edge, edge, "diverging"


def _computes(step: Step, record: AttentionRecord) -> bool:
    return record.op in step.ops or step.inside == record.op


def _weights(attention: LayerAttention) -> list[np.ndarray] | None:
    """Return the mean over heads of the first input's attention, of both runs; None where it can't be drawn."""
    maps = []
    for run, part in attention.towers:
        try:
            if not can_draw(run, layers(run, part)[attention.layer]):
                return None
            weights = run.attention(attention.layer, part=part)[0].mean(dim=0)
        except (ValueError, LookupError):
            return None
        maps.append(reduce(as_array(weights), SIDE, SIDE)[0])
    return maps
