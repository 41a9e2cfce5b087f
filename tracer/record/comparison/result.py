"""Outcome of comparing two runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from tracer.record.comparison.answers import Answers, compare_answers
from tracer.record.comparison.equations import EquationRelation
from tracer.record.comparison.tensors import Relation, TensorRelation, compare_tensors
from tracer.record.steps import Step
from tracer.record.trace import Trace

if TYPE_CHECKING:
    import pandas

COLUMNS = (
    "a", "b", "layer", "stage", "title", "values", "difference", "relative", "equations", "shape_a", "shape_b",
    "symbolic_a", "symbolic_b", "note",
)  # fmt: skip
MOST_WEIGHTS = 1 << 28
"""Attention weights of a layer that are compared: 1 GB in each run."""


@dataclass(frozen=True, slots=True)
class LinePair:
    """Two aligned lines, or a line of one run only: then the other is None, and so is `equations`.

    The value of a line that a change added is compared with that of the line that it changes, in the other run
    (`beside`).
    """

    a: Step | None
    b: Step | None
    values: TensorRelation
    equations: EquationRelation | None
    beside: Step | None = None

    @property
    def step(self) -> Step:
        """Line of the second run; of the first, where the second has none."""
        step = self.b or self.a
        assert step is not None
        return step

    @property
    def id(self) -> str:
        """Id of `step`."""
        return self.step.id

    @property
    def alone(self) -> bool:
        """True if only one run has this line."""
        return self.a is None or self.b is None

    @property
    def differs(self) -> bool:
        """True if the values differ by more than rounding; where a value was not kept, if the equations are not
        the same mathematics."""
        if self.values.relation is Relation.MISSING:
            return self.equations is EquationRelation.DIFFERENT
        return self.values.relation.differs

    @property
    def same_shape(self) -> bool:
        """True if both lines have the same shape, in numbers."""
        return not self.alone and self.a.shape == self.b.shape  # type: ignore[union-attr] # neither is None

    @property
    def same_symbols(self) -> bool:
        """True if both lines have the same shape, in symbols."""
        return not self.alone and self.a.symbolic == self.b.symbolic  # type: ignore[union-attr] # neither is None


@dataclass(frozen=True, repr=False)
class LayerAttention:
    """Attention weights of a layer of both runs; `part` is the tower of the first run, layers count from 0."""

    part: str
    layer: int
    a: Trace
    b: Trace
    part_of_b: str

    @property
    def towers(self) -> tuple[tuple[Trace, str], tuple[Trace, str]]:
        """Both runs, each with the name of its tower."""
        return (self.a, self.part), (self.b, self.part_of_b)

    @cached_property
    def values(self) -> TensorRelation:
        """Relation of the weights of the two runs; not computed where their sizes differ."""
        from tracer.attention import layers, weights  # stands above the record: looked up

        sizes = [
            (record.heads, record.queries, record.keys)
            for record in (layers(*tower)[self.layer] for tower in self.towers)
        ]
        if sizes[0] != sizes[1]:
            return TensorRelation(Relation.SHAPES)
        if prod(sizes[0]) > MOST_WEIGHTS:
            heads, queries, keys = sizes[0]
            return TensorRelation(
                Relation.MISSING, note=f"{heads} × {queries:,} × {keys:,} weights are too many to compare"
            )
        try:
            return compare_tensors(*(weights(run, self.layer, part=part) for run, part in self.towers))
        except (ValueError, LookupError) as error:
            return TensorRelation(Relation.MISSING, note=str(error) if isinstance(error, ValueError) else "not kept")


@dataclass(frozen=True, repr=False)
class Comparison:
    """Two runs, line by line: `rows` in the order of the runs, and the tensors that forward returned (`output`)."""

    a: Trace
    b: Trace
    rows: tuple[LinePair, ...]
    output: TensorRelation

    @property
    def equal(self) -> bool:
        """True if the outputs, and all values that were kept in both runs, are equal up to rounding; False if there was
        nothing to compare."""
        values = [self.output, *(row.values for row in self.rows)]
        return any(value.relation.equal for value in values) and not (
            self.output.relation.differs or any(row.differs for row in self.rows)
        )

    @property
    def first(self) -> LinePair | None:
        """First line that differs; if only the outputs differ, the first line that one run lacks."""
        differing = next((row for row in self.rows if row.differs), None)
        if differing or self.equal:
            return differing
        return next((row for row in self.rows if row.alone), None)

    @cached_property
    def attention(self) -> tuple[LayerAttention, ...]:
        """Attention of each layer that both runs have."""
        from tracer.attention import layers, parts  # stands above the record: looked up

        return tuple(
            LayerAttention(part, layer, self.a, self.b, part_of_b)
            for part, part_of_b in zip(parts(self.a), parts(self.b), strict=False)
            for layer in range(min(len(layers(self.a, part)), len(layers(self.b, part_of_b))))
        )

    @cached_property
    def answers(self) -> Answers | None:
        """Answers of the two runs; None where one of them has no answer in words."""
        return compare_answers(self.a.result, self.b.result)

    def counts(self) -> dict[str, int]:
        """Count the rows of each relation of values, and the lines without a partner."""
        counts = Counter(str(row.values.relation) for row in self.rows if not row.alone)
        known = {str(relation): counts[str(relation)] for relation in Relation}
        for name, lacking in (("a", "b"), ("b", "a")):
            known[f"only in {name}"] = sum(getattr(row, lacking) is None for row in self.rows)
        return {name: count for name, count in known.items() if count}

    def records(self) -> list[dict[str, Any]]:
        """Return a dictionary for each row, keyed by `COLUMNS`."""
        return [_record(row) for row in self.rows]

    def table(self) -> pandas.DataFrame:
        """Return the rows as a data frame. Raise ModuleNotFoundError with the package to install if pandas is
        missing."""
        from tracer.utils.extras import require  # pandas takes long to import

        frame = require("pandas", "comparison.table()").DataFrame(self.records(), columns=COLUMNS)
        return frame.astype({"layer": "Int64"})

    def __repr__(self) -> str:
        counted = ", ".join(f"{count} {what}" for what, count in self.counts().items())
        first = f"; the first difference is {self.first.id}" if self.first else ""
        return f"<Comparison of {self.a.model} and {self.b.model}: {counted}{first}>"


def _record(row: LinePair) -> dict[str, Any]:
    a, b = row.a, row.b
    return {
        "a": a and a.id,
        "b": b and b.id,
        "layer": row.step.layer,
        "stage": row.step.stage,
        "title": row.step.title,
        "values": str(row.values.relation),
        "difference": row.values.difference,
        "relative": row.values.relative,
        "equations": row.equations and str(row.equations),
        "shape_a": a and list(a.shape),
        "shape_b": b and list(b.shape),
        "symbolic_a": a and list(a.symbolic),
        "symbolic_b": b and list(b.symbolic),
        "note": row.values.note,
    }
