"""Record of one forward pass, with its most common queries."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import index as whole
from typing import TYPE_CHECKING, Any, NamedTuple

from tracer.ops import is_layout
from tracer.record.steps import (
    CHANGED_SUFFIX,
    INPUT,
    AttentionRecord,
    CallRecord,
    Decomposition,
    DeferredProver,
    Film,
    Finding,
    Findings,
    ModuleRecord,
    Op,
    Picture,
    Prover,
    Repeat,
    Replayer,
    ReturnedTensor,
    Segment,
    Step,
    Symbol,
    repeats,
)
from tracer.utils.errors import quote
from tracer.utils.lazy_import import provider

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import pandas
    import torch


OF_LINES = ("ops", "steps", "values", "returned", "notes", "later", "replay")
"""What of a trace depends on how its lines are written."""


@dataclass(frozen=True, repr=False)
class Trace:
    """One forward pass: its ops, steps, proofs and attention. Created by `tracer.trace` or `Model.trace`.

    Attributes:
        modules: The calls of modules, in the order in which they began.
        calls: The composite ops that the code asked for, in the order in which they began.
        decompositions: One entry for each op that was opened, in order; with `primitives=True`, for every op.
        returned: For each tensor in `output`, the step that has it.
        opened_error: The relative difference between the output and that of PyTorch's fast path, if a plain forward
            takes one; a note says more.
        changes: The lines that were changed in this run, and how: `block1.attention.weights=zero`.
        diagnosis: All findings, acknowledged or not, or None while nobody asked for them (`findings`).
        later: The prover of pending steps, with the equations by which cells are followed. It holds the model and is
            not part of the data: it is never saved, copied or compared. The same holds for `replay`, which runs the
            model again, and for `reread`, which proves the lines of an opened file from its tensors.
    """

    model: str
    ops: tuple[Op, ...]
    steps: tuple[Step, ...] = ()
    symbols: tuple[Symbol, ...] = ()
    attentions: tuple[AttentionRecord, ...] = ()
    values: Mapping[str, torch.Tensor] = field(default_factory=dict)
    output: object = None
    returned: tuple[ReturnedTensor, ...] = ()
    picture: Picture | None = None
    words: tuple[str, ...] = ()
    segments: tuple[Segment, ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    params: int = 0
    params_symbolic: str = "0"
    flops: int = 0
    flops_symbolic: str = "0"
    weights: str = ""
    notes: tuple[str, ...] = ()
    decompositions: tuple[Decomposition, ...] = ()
    modules: tuple[ModuleRecord, ...] = ()
    calls: tuple[CallRecord, ...] = ()
    opened_error: float | None = None
    changes: tuple[str, ...] = ()
    diagnosis: tuple[Finding, ...] | None = None
    later: DeferredProver | None = field(default=None, compare=False)
    replay: Replayer | None = field(default=None, compare=False)
    reread: Prover | None = field(default=None, compare=False)

    @cached_property
    def coverage(self) -> float:
        """Share of the computing ops that belong to a step, 0 to 1; 0 for a run without steps."""
        computing = [op for op in self.ops if not is_layout(op.op)]
        return sum(op.step is not None for op in computing) / len(computing) if computing else 0.0

    @cached_property
    def uncounted_ops(self) -> tuple[Op, ...]:
        """Ops whose products `flops` lacks: there is no formula for them."""
        return tuple(op for op in self.ops if op.flops is None)

    @cached_property
    def repeats(self) -> tuple[Repeat, ...]:
        """Blocks whose lines differ only in their number."""
        return repeats(self.steps)

    @cached_property
    def producers(self) -> dict[str, tuple[str, ...]]:
        """The steps and the inputs of the run that lead to each step: what its equation reads, in its order.

        A change that reads nothing, such as zeros, follows the line whose value it replaces.
        """
        ids = {step.id for step in self.steps}
        reads = {step.id: [key for key in step.reads if key in ids or key.startswith(INPUT)] for step in self.steps}
        for id in ids:
            if id.endswith(CHANGED_SUFFIX) and not reads[id] and (changed := id.removesuffix(CHANGED_SUFFIX)) in ids:
                reads[id] = [changed]
        return {id: tuple(key for key in keys if key != id) for id, keys in reads.items()}

    def step(self, id: str) -> Step:
        """Return the step with that id. KeyError quotes an unknown one."""
        for step in self.steps:
            if step.id == id:
                return step
        raise KeyError(
            f"no step {quote(id)} in this trace; the first is {quote(self.steps[0].id)}" if self.steps else id
        )

    def changed_step(self, id: str) -> Step | None:
        """Return the line that changes the value of the step with that id, None where no change does."""
        return next((step for step in self.steps if step.id == f"{id}{CHANGED_SUFFIX}"), None)

    @property
    def prover(self) -> Prover | None:
        """Prover of the pending steps: the model that ran, or the tensors of the file that was opened."""
        return self.later or self.reread

    def prove(self, ids: str | Iterable[str] | None = None) -> Trace:
        """Return this trace with the pending proofs of these steps, or of all steps if `ids` is None.

        If the numbers of the run refute the name of a formula, its lines are replaced by those of the code.

        Raises:
            KeyError: An id is unknown.
            ValueError: A proof was left for later, and the model is gone.
        """
        chosen = self._chosen(ids)
        waiting = [step for step in self.steps if step.pending and (chosen is None or step.id in chosen)]
        if not waiting:
            return self
        if (prover := self.prover) is None:
            raise ValueError(f"step {quote(waiting[0].id)} can't be verified: the model that ran is no longer there")
        verified = prover(waiting)
        trace = replace(self, steps=tuple(verified.get(step.id, step) for step in self.steps))
        spelled = self.later.spell(verified.values()) if self.later else None
        if spelled is None:
            return trace
        before = {step.id: step.pending for step in trace.steps}
        again = replace(self, **{name: getattr(spelled, name) for name in OF_LINES})
        return again.prove([step.id for step in spelled.steps if not before.get(step.id)])

    def _chosen(self, ids: str | Iterable[str] | None) -> set[str] | None:
        """Return the ids of steps, None for all. Raise KeyError for an unknown one."""
        return None if ids is None else {self.step(id).id for id in ([ids] if isinstance(ids, str) else ids)}

    def check(self, ids: str | Iterable[str] | None = None) -> Trace:
        """Return this trace with the printed lines of these steps, or of all steps if `ids` is None, checked on other
        runs: other inputs, other weights, other sizes.

        `Step.checked` is the number of runs on which a line holds.

        Raises:
            KeyError: An id is unknown.
            ValueError: The model that ran is no longer there.
        """
        if not self.steps:
            return self
        if self.replay is None:
            raise ValueError("the lines of this trace can't be checked on other runs: its model is no longer there")
        steps = self.replay.check(self.steps, self.later, self._chosen(ids))
        return replace(self, steps=steps, notes=tuple(dict.fromkeys((*self.notes, *self.replay.notes))))

    def diagnose(self) -> Trace:
        """Return this trace with its findings: likely mistakes in the model's code.

        Some rules run the model again. Those are left out of a trace that no longer holds its model, and of one whose
        model is too large to be run unasked.
        """
        return self if self.diagnosis is not None else replace(self, diagnosis=provider("findings")(self))

    @cached_property
    def _diagnosis(self) -> tuple[Finding, ...]:
        return self.diagnose().diagnosis or ()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Likely mistakes in the model's code: the findings that nobody acknowledged. See `docs/findings.md`.

        Examples:
            >>> import torch, tracer
            >>> merge = lambda heads: heads.reshape(2, 5, 12)  # [B, h, T, d_k], not transposed
            >>> [finding.kind for finding in tracer.trace(merge, torch.randn(2, 3, 5, 4)).findings]
            ['axes mixed']
        """
        return Findings(finding for finding in self._diagnosis if not finding.intent)

    @property
    def acknowledged_findings(self) -> tuple[Finding, ...]:
        """Findings that are on purpose, each with the reason in its `intent`."""
        return Findings(finding for finding in self._diagnosis if finding.intent)

    def __getstate__(self) -> dict:
        """Return the pickled and copied state: plain data, all of it verified."""
        return {**vars(self.prove()), "later": None, "replay": None, "reread": None}

    def value(self, step: str | Step) -> torch.Tensor | None:
        """Return the traced tensor of a step, or None if it was not kept."""
        step = self.step(step) if isinstance(step, str) else step
        return self.values.get(step.value)

    def cell(self, id: str, index: Sequence[int]) -> Cell:
        """Return one cell of a step's tensor: its number, its operands, and the contribution of each.

        Raises:
            KeyError: The id is unknown.
            ValueError: The tensor has no such index, or the equations are not available, as in a trace that was opened
                from a file.
        """
        return provider("cell")(self, id, index)

    def attention(
        self, layer: int, head: int | None = None, query: int | None = None, *, part: str | None = None
    ) -> torch.Tensor:
        """Return attention weights from the queries, keys and mask that ran.

        The shape is `[B, h, S_q, S_k]`, without the h axis if `head` is given, and without the S_q axis if `query` is.
        Layers, heads and queries count from 0. `part` names the tower of a model that has several.
        Source: Vaswani et al. 2017, equation 1.

        Raises:
            ValueError: The run has no such layer, head or query, or the weights can't be recovered.
        """
        return provider("attention")(self, layer, head, query, part=part)

    def table(self, level: str = "ops") -> pandas.DataFrame:
        """Return the run as a data frame, one row per op, or per module, step, call or primitive (`level="modules"` …).

        Raises:
            ValueError: The trace was made without this level.
        """
        return provider("table")(self, level)

    def film(self, letters: str = "ours") -> Film:
        """Return the run as a film, which a notebook shows and `save` writes to one HTML file that plays anywhere, with
        equations in the letters of a text, such as "2017".

        ValueError for a run without operations, and for a text that has no letters.
        """
        return provider("film")(self, letters)

    def save(self, path: str | Path) -> None:
        """Write the trace to one safetensors file: tensors, and everything else as JSON in its header.

        Pending proofs are completed first.
        """
        provider("save")(self, path)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{symbol.name}={symbol.value}" for symbol in self.symbols[:12])
        return f"<Trace of {quote(self.model)}: {len(self.ops)} ops, {len(self.steps)} steps; {sizes}>"

    def _repr_html_(self) -> str:
        return provider("html")(replace(self, diagnosis=self._diagnosis))


class Number(NamedTuple):
    """An operand of a cell, by its index in its tensor.

    `share` is its contribution, or None if that is not a single number. The shares of operands that are `counted` add
    up to the cell; the others are the second factors of products, the rest of a softmax's row, and the like. After a
    function that is not a sum, shares are in proportion to those before it.
    """

    index: tuple[int, ...]  # type: ignore[assignment]
    value: float | complex
    share: float | complex | None
    counted: bool = True


class User(NamedTuple):
    """Cells of a step that read one number: all whose index along each axis is in `axes`.

    `exact` is whether each of them reads it; else the set is the smallest of this form that holds all that do.
    """

    step: str
    axes: tuple[tuple[int, ...], ...]
    exact: bool = True


@dataclass(frozen=True)
class Cell:
    """One cell of a step's tensor: its number as traced, and as computed from its terms, in float64.

    `terms` are the numbers that it was computed from, by the tensor that they belong to: the id of a step, `input x`,
    `parameter w`, `constant 0` (a tensor that the run did not compute), or `number …`, written in the equation. Only
    cells of steps have terms; elsewhere the way ends. `note` says what is missing. `numeric_latex` is the right side of
    the equation as LaTeX with the numbers of this cell; `symbols` are the letters of the operands there, by their keys.
    """

    id: str
    index: tuple[int, ...]  # type: ignore[assignment]
    value: float | complex
    computed: float | complex | None = None
    latex: str = ""
    terms: Mapping[str, tuple[Number, ...]] = field(default_factory=dict, repr=False)
    note: str = ""
    numeric_latex: str = field(default="", repr=False)
    symbols: Mapping[str, str] = field(default_factory=dict, repr=False)
    trace: Trace = field(kw_only=True, repr=False, compare=False)

    def back(self, operand: str, index: Any = None) -> Cell:
        """Return the cell of one of the operands, by its key in `terms`; without an index, that of the largest
        contribution.

        Raises:
            ValueError: The cell was not computed from this operand, or not from this index of it.
        """
        if operand not in self.terms:
            sentence = f"it was made of {', '.join(map(repr, self.terms))}" if self.terms else "the way ends there"
            raise ValueError(f"cell {self.index} of {quote(self.id)} was not made of {quote(operand)}: {sentence}")
        numbers = self.terms[operand]
        if index is None:
            index = max(numbers, key=lambda term: (term.counted, abs(term.share or 0), abs(term.value))).index
        elif operand_cell(index) not in {term.index for term in numbers}:
            raise ValueError(
                f"cell {self.index} of {quote(self.id)} was not made of {quote(index)} of {quote(operand)}; "
                f"the first that it was made of is {numbers[0].index}"
            )
        if operand.startswith("number "):
            number = next(term for term in numbers if term.index == operand_cell(index))
            return Cell(operand, number.index, number.value, trace=self.trace)
        return self.trace.cell(operand, index)

    def users(self) -> tuple[User, ...]:
        """Return the cells that read this number, in the lines that name its tensor, in the order in which they ran.

        A pixel is read by a cell of a patch, that by all numbers of one embedding, and so on: `back` goes from a number
        to its operands, `users` the other way. Empty for an output, and for a run without its equations.
        """
        return provider("users")(self)


def operand_cell(index: Any) -> tuple[int, ...] | None:
    """Return an index as a tuple of whole numbers, None for anything else."""
    try:
        return tuple(whole(i) for i in index) if not isinstance(index, str) else None
    except TypeError:
        return None
