"""Counterfactual: each printed line has to predict the tensors of runs that it was not derived from.

A twin of the traced module, with its own options and buffers, is run with other weights and inputs, in float64, and at
other sizes where the symbols allow. The very LaTeX is then read by the independent reader and evaluated on the tensors
of that run. Nothing of the equations that were executed takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from math import copysign, inf, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from sympy import sympify

from tracer.capture import OpEvent, Recording, record
from tracer.capture.calls import Call, CallLog
from tracer.capture.logged_sizes import scalars_of
from tracer.capture.modes import Function, blocks
from tracer.capture.outer_values import StateName
from tracer.capture.program_slices import Choice
from tracer.capture.state import restoring
from tracer.expr import tensors
from tracer.latex_reader.evaluator import (
    INFINITY_THRESHOLD,
    MissingOperand,
    Operands,
    deviation,
    evaluate,
    names,
    zero_empty_rows,
)
from tracer.latex_reader.parser import Line, Undefined, UnreadableLatex, read
from tracer.ops import ops_with
from tracer.record import ModuleRecord, Step, Trace, dtype_name, tolerance
from tracer.shapes import Solution, value_of
from tracer.shapes.alignment import match_in_order
from tracer.shapes.solver import UNKNOWN, flatten
from tracer.shapes.variation import EQUATIONS, Variation, probe_kind, probe_kinds, vary
from tracer.symbols import notation
from tracer.textbook.conditions import (
    DRAWN_NOTE,
    STATE_NOTE,
    depends_on_values,
    takes_fewer,
    takes_other_branch,
    within_limits,
)
from tracer.textbook.derivation import KERNEL, THIS_RUN_NOTE, DerivedStep, Textbook
from tracer.textbook.names import PARAMETER, Hint
from tracer.tracing.proofs import DeferredProofs, ProbeValues, unseen, unseen_in_run, weight, weights
from tracer.utils.errors import quote, reason
from tracer.utils.job_queue import tell
from tracer.utils.torch_state import seeded_draws

RUNS = 3
"""On how many other runs a line is checked."""
LARGE_BYTES = 500 * 2**20
"""Bytes of weights above which one block of each kind is run."""
SMALL_BYTES = 50 * 2**20
"""The same of a model that is to be run in a short time."""
CASTS = ops_with("cast")
KEPT_BYTES = 2**30
"""Cap in bytes on the tensors that another run keeps."""

LONG_SIZES = 521, 257, 131
"""Sizes beyond those of all probes, each beyond a power of two, at which code often does something else."""
LONG_CELLS = 2**21
"""Numbers in the tensors of a run at such a size."""

BLOCKS_NOTE = "At its own sizes, one block of each kind is run again, since the model is large."
NO_WORDS = "It is not checked on other runs: its equation names a kernel, which no reader can evaluate."
SECOND_CALL = "a second call"
OTHER_BRANCH = "With {}, the code takes another branch, and this line does not hold there."
FEWER = "With {}, the code takes fewer of an axis than it has."
BEYOND = "With {}, numbers go beyond the largest of float16, 65,504, on the way."
NOT_AGAIN = "In a second call of the same module, its tensor has other values."
STATE = STATE_NOTE.partition(":")[0], DRAWN_NOTE.partition("`")[0]
"""How the note of a line begins that reads what forward changes, or random numbers."""
OTHER_WEIGHTS, OTHER_SIZES = "With other weights", "At other sizes"
NOT_RUN = "{}, no line was checked: the model does not run there ({})."
"""Of a line that was checked on fewer runs."""
ABSENT = "It was not checked on other runs: they do not make this step's tensor, or did not keep it."
PRECISION_NOTE = "With {}, the model was run in its own precision: in float64 {}."
"""Of a run whose numbers are less precise than those of others."""
FAILS, OTHER_CODE = "it does not run ({})", "its code does something else"
"""Why a run in float64 does not count."""


class Outcome(NamedTuple):
    """Outcome of one other run for a line: it holds, it does not (`wrong` says how), or the reason why it was not
    tried."""

    holds: bool = False
    wrong: str = ""
    reason: str = ""


class Course(NamedTuple):
    """Course of the code of a run: its ops and the numbers in its calls in order, without casts, and the count of
    these."""

    ops: tuple[str, ...]
    numbers: tuple[tuple, ...]
    casts: int

    @classmethod
    def of(cls, ops: Iterable[OpEvent], calls: CallLog | None) -> Course:
        """Return the course of a run."""
        names = [op.name for op in ops if not op.name.startswith("view")]
        entries = scalars_of(calls.entries if calls else ())
        numbers = ((entry.name, *map(_without_infinities, flatten(entry).values())) for entry in entries)
        return cls(
            tuple(name for name in names if name not in CASTS),
            tuple(entry for entry in numbers if len(entry) > 1),
            sum(name in CASTS for name in names),
        )

    def is_in(self, wide: Course) -> bool:
        """Return whether a run in float64 did all that this one did; there, the code may need more casts."""
        return (self.ops, self.numbers) == (wide.ops, wide.numbers) and self.casts <= wide.casts

    def differs(self, other: Course, same_sizes: bool) -> bool:
        """Return whether another run did something else: other ops, or at the same sizes with other numbers."""
        return self.ops != other.ops or (same_sizes and self.numbers != other.numbers)


def _without_infinities(number: float) -> float:
    """Return a number; an infinity for one that stands for it, such as the lowest of a dtype."""
    return copysign(inf, number) if abs(number) > INFINITY_THRESHOLD else number


class Run(NamedTuple):
    """Another run: its label, its sizes, the tensors by the keys of equations, the key of each step by its id, or none
    without a counterpart, and the lowest precision of its line, "" if none of its ops ran."""

    label: str
    sizes: dict[str, int]
    tensor: Callable[[str], torch.Tensor | None]
    places: dict[str, str | None]
    precision: dict[str, str]
    same_sizes: bool
    course: Course | None = None
    own_precision: Callable[[], Run] | None = None
    """Makes the same run in the precision of the model; None if it was made in that."""
    choices: tuple[Choice, ...] = ()
    differs: bool = False
    """True if the code did something else than in the traced run."""


@dataclass(frozen=True)
class Replay:
    """Recipe to run a traced module again: the module, its arguments, its calls, its lines, its sizes. `derive` lays
    the textbook over a run at other sizes; `depths` are the symbols of numbers of blocks. One that is `shortened` runs
    one block of each kind, as for any model of more than `LARGE_BYTES` bytes.

    A trace holds it while its model is there. It runs nothing until it is asked to `check` lines.
    """

    module: torch.nn.Module
    args: tuple
    kwargs: dict[str, Any]
    calls: CallLog
    derived_steps: Sequence[DerivedStep]
    sizes: dict[str, int]
    solution: Solution | None
    derive: Callable[[Recording, dict[str, int]], tuple[Textbook, Any]]
    depths: tuple[str, ...] = ()
    hints: tuple[Hint, ...] = ()
    grad: bool = field(default_factory=torch.is_grad_enabled)
    shortened: bool = False
    state: frozenset[StateName] = frozenset()
    ops: Sequence[OpEvent] = ()
    missing: list[str] = field(default_factory=list)
    """Which runs were not made, and why."""
    narrow: list[str] = field(default_factory=list)
    """Which runs were made in another precision, and why."""

    @property
    def notes(self) -> list[str]:
        """Notes on the checks, besides those of single lines."""
        return [*self.missing, *self.narrow]

    def shorten(self, shortened: bool) -> Replay:
        """Return the recipe that runs one block of each kind, or the whole module."""
        return replace(self, shortened=shortened)

    def check(
        self, steps: Sequence[Step], later: DeferredProofs | None = None, ids: Collection[str] | None = None
    ) -> tuple[Step, ...]:
        """Return the steps with the number of other runs on which each line holds, and the first that contradicts.

        Of the operands that the proof does not see in the traced run, which `later` has, those that no other run shows
        either are `Step.unseen`. With `ids`, only these steps are checked.
        """
        chosen = [step for step in steps if ids is None or step.id in ids]
        if not chosen:
            return tuple(steps)
        derived = {step.line.id: step for step in self.derived_steps}
        run_again = self._run_again()
        open = unseen_in_run(later, [step for step in chosen if run_again(derived[step.id])]) if later else {}
        open = {id: keys for id, keys in open.items() if keys}
        fused = {step.line.id: step.line.equation for step in self.derived_steps if step.line.place is None}
        known = self._names(steps)
        asked = {step.id for step in chosen}
        lines = {step.id: _read(step, known) for step in steps if step.id in asked or step.recomputed}
        outcomes: dict[str, list[Outcome]] = {id: [] for id in lines}
        failed = BLOCKS_NOTE if self.left_out() else ""
        self.missing.clear()
        self.narrow.clear()
        runs = self.runs()
        completed = 0
        for number in range(RUNS):
            try:
                if (run := next(runs, None)) is None:
                    break
                for id, outcome in self._predict(steps, lines, run):
                    outcomes[id].append(outcome)
                values = ProbeValues(run.tensor, run.places, fused, run.sizes)
                for id, keys in open.items():
                    rounded = values.in_precision(id, run.precision.get(id) or "float64")
                    still = unseen(derived[id], rounded, run.sizes, keys)
                    open[id] = {key: keys[key] and unchanged for key, unchanged in still.items()}
                open = {id: keys for id, keys in open.items() if keys}
                completed += 1
            except Exception as error:  # the model's own, with other numbers
                failed = f"It was not checked on other runs: the model does not run there ({reason(error)})."
                if not number:
                    break
                self.missing.append(NOT_RUN.format(OTHER_WEIGHTS, reason(error)))
        if completed == RUNS:  # what is alike in all runs, and no training changes, is a part of the code
            open = {
                id: {key: uniform for key, uniform in keys.items() if not uniform or key.startswith("parameter ")}
                for id, keys in open.items()
            }
        names = {id: {tensor.key: tensor.name for tensor in tensors(derived[id].line.equation)} for id in open}
        checked = {
            step.id: replace(
                _apply_outcomes(step, outcomes[step.id], failed, self.missing),
                unseen=tuple(names[step.id][key] for key in open.get(step.id, ())),
            )
            for step in chosen
        }
        return tuple(checked.get(step.id, step) for step in steps)

    def _names(self, steps: Sequence[Step]) -> frozenset[str]:
        return frozenset(names(steps)) | {notation.latex(name) for name in self.sizes}

    @property
    def outside(self) -> bool:
        """True if the module is a function that reads tensors around it, which can't be copied."""
        return isinstance(self.module, Function) and not self.module.owned

    def runs(self) -> Iterator[Run]:
        """Yield `RUNS` other runs, of the kinds that show wrong equations."""
        if any(tensor.is_meta for tensor in weights(self.module).values()):
            raise ValueError("its weights have no values")
        runs = (kind.make(self) for kind in probe_kinds(EQUATIONS, self))
        yield from islice(filter(None, runs), RUNS)

    def run(self, how: Variation, label: str = "") -> Run:
        """Return a run at the sizes of the traced one; with its ids and precision if it fails with others."""
        label = label or ("other weights and inputs" if how.weights and not self.outside else "other inputs")
        how = how._replace(wide=how.wide and not self.outside)
        shared = self.left_out()
        try:
            return self.at(label, self.module, self.args, self.kwargs, how, self.sizes, shared)
        except Exception as error:
            if not how.wide:
                raise
            narrow = how._replace(wide=False)
            run = self.at(label, self.module, self.args, self.kwargs, narrow, self.sizes, shared)
            self.narrow.append(PRECISION_NOTE.format(label, FAILS.format(reason(error))))
            return run

    def left_out(self, built: torch.nn.Module | None = None) -> tuple[torch.nn.Module, ...]:
        """Return the blocks that are not run again, of a model that is too large for a second set of weights, or of one
        that was `built` at other sizes."""
        whole, most = built or self.module, LARGE_BYTES
        if self.shortened:
            most = SMALL_BYTES if built else 0
        if sum(tensor.nbytes for tensor in whole.parameters()) <= most:
            return ()
        kinds, left = set(), []
        known = blocks(list(whole.named_modules(remove_duplicate=False)))
        for module in whole.modules():
            if id(module) in known:
                kind = type(module), tuple((name, tuple(p.shape)) for name, p in module.named_parameters())
                (left.append(module) if kind in kinds else kinds.add(kind))
        return tuple(left)

    def _run_again(self) -> Callable[[DerivedStep], bool]:
        """Return a predicate of the steps whose module is run again."""
        left = set(map(id, self.left_out()))
        paths = {path for path, module in self.module.named_modules(remove_duplicate=False) if id(module) in left}
        inside = tuple(f"{path}." for path in paths)

        def run_again(step: DerivedStep) -> bool:
            place = step.line.place
            return place is None or not f"{place.module}.".startswith(inside)

        return run_again

    def _predict(self, steps: Sequence[Step], lines: dict[str, Line | str], run: Run) -> Iterator[tuple[str, Outcome]]:
        """Yield the outcomes of another run. A run in float64 in which the code does something else, such as under
        autocast, refutes nothing: its lines have the outcomes of the same run in the model's own precision."""
        outcomes = dict(predict(steps, lines, run))
        if run.own_precision and any(outcome.wrong for outcome in outcomes.values()):
            own = run.own_precision()
            if own.course and run.course and not own.course.is_in(run.course):
                self.narrow.append(PRECISION_NOTE.format(run.label, OTHER_CODE))
                outcomes = dict(predict(steps, lines, own))
        yield from outcomes.items()

    def at(self, label: str, module, args, kwargs, how: Variation, sizes: dict[str, int], left_out) -> Run:
        """Return a run of a twin, aligned with the traced one."""
        again = partial(self.at, label, module, args, kwargs, how._replace(wide=False), sizes, left_out)
        own = again if how.wide and not self.outside else None
        earlier: Sequence[Any] = ()
        if label == SECOND_CALL:
            _, *earlier = vary(module, args, kwargs, how._replace(seed=how.seed + 1), left_out)
        varied, args, kwargs = vary(module, args, kwargs, how, left_out)
        if left_out:
            inner = dict(zip(map(id, module.modules()), varied.modules(), strict=True))
            for part in left_out:
                inner[id(part)].forward = _first_tensor
        with torch.set_grad_enabled(self.grad), ExitStack() as stack:
            if earlier:
                stack.enter_context(restoring(varied))
                varied(*earlier[0], **earlier[1])
            recording = record(varied, args, kwargs, cap=KEPT_BYTES, attention=False, calls=True)
        recording.output = None
        course = Course.of(recording.ops, recording.calls)
        places, precision = self._align(recording, sizes, sizes == self.sizes)
        state = weights(varied)

        def tensor(key: str) -> torch.Tensor | None:
            if key.startswith("parameter "):
                return weight(state, key.removeprefix("parameter "))
            held = recording.inputs if key.startswith("input ") else recording.store
            return held.get(key.removeprefix("input "))

        return Run(
            label,
            sizes,
            tensor,
            places,
            precision,
            sizes == self.sizes,
            course,
            own,
            tuple(recording.choices),
            self.course.differs(course, sizes == self.sizes),
        )

    @cached_property
    def course(self) -> Course:
        """Course of the traced run."""
        return Course.of(self.ops, self.calls)

    def _align(self, recording: Recording, sizes: dict[str, int], same: bool) -> tuple[dict, dict]:
        """Return the key of each step's tensor in another run, and the precision of its line there.

        Runs are aligned by their calls: which ops one takes differs with the batch. At other sizes, lines of loops that
        take other turns are laid over the run anew.
        """
        theirs = recording.calls or CallLog()
        pairs = _match_calls(self.calls.entries, theirs.entries)
        keys, ops = {}, {}
        for ran, again in sorted(pairs, key=lambda pair: pair[0].first):
            for ref, same in zip(ran.outputs, again.outputs, strict=True):
                keys.setdefault(ref.key, same.key)  # what gives back its operand, such as a cast, makes no new value
            ops |= dict.fromkeys(range(ran.first, ran.last), range(again.first, again.last))
        blocks = {(module.path, module.call): module for module in theirs.modules}
        for module in self.calls.modules:  # those that are left out give back what they take
            if (passed := blocks.get((module.path, module.call))) and passed.first == passed.last:
                keys |= {ref.key: same.key for ref, same in zip(module.outputs, passed.outputs, strict=False)}
        owned = {j for step in self.derived_steps for i in step.ops for j in ops.get(i, ())}
        places: dict[str, str | None] = {}
        precision: dict[str, str] = {}
        for step in self.derived_steps:
            places[step.line.id] = _map_key(step.value, keys)
            own = step.ops or (step.op,)  # one call can compute several lines
            precision[step.line.id] = _precision(recording.ops, {j for i in own for j in ops.get(i, ())}, owned)
            if step.line.idiom and precision[step.line.id] == "float64":
                precision[step.line.id] = "float32"
        loops = {step.line.id for step in self.derived_steps if "|" in step.value and places[step.line.id] is None}
        for step in self.derive(recording, sizes)[0].steps if loops and not same else ():
            if step.line.id in loops:
                places[step.line.id] = step.value
                precision[step.line.id] = _precision(recording.ops, step.ops, owned)
        return places, precision


# The kinds of probes on which lines are checked, in float64.


@probe_kind(SECOND_CALL, EQUATIONS, cost=1, applies=lambda replay: bool(replay.state))
def _run_again(replay: Replay) -> Run:
    """Return the second call of a twin, on other inputs: what forward left in its attributes is there."""
    return replay.run(Variation(False, True, True, 1), SECOND_CALL)


@probe_kind("other inputs", EQUATIONS, cost=1, applies=lambda replay: not replay.state)
def _run_on_other_inputs(replay: Replay) -> Run:
    return replay.run(Variation(False, True, True, 1))


@probe_kind("other weights and inputs", EQUATIONS, cost=1)
def _run_with_other_weights(replay: Replay) -> Run:
    return replay.run(Variation(True, True, True, 2))


def _has_sizes(replay: Replay) -> bool:
    """Return whether a model was run at other sizes, on tensors with values."""
    way = replay.solution.way if replay.solution is not None else None
    return way is not None and way[0].mode is None


@probe_kind("other sizes", EQUATIONS, cost=1, applies=_has_sizes)
def _run_at_other_sizes(replay: Replay) -> Run | None:
    """Return a run at sizes of a probe, with other weights and inputs; None if the model can't be run there."""
    vocabulary, probes = replay.solution.way  # type: ignore[union-attr,misc] # which it has
    problem = ""
    for probe in (*_long_sizes(replay), probes[0]):
        at = probe | {name: replay.sizes[name] for name in replay.depths if name in probe}
        try:
            with seeded_draws(0):
                module, args, *more = vocabulary.build(at)
            how = Variation(True, True, not isinstance(module, Function) or module.owned, 4)
            sizes, kwargs = vocabulary.complete(at), more[0] if more else {}
            return replay.at("other sizes", module, args, kwargs, how, sizes, replay.left_out(module))
        except Exception as error:  # a size that it does not take; the runs at its own sizes stand
            problem = reason(error)
    replay.missing.append(NOT_RUN.format(OTHER_SIZES, problem))
    return None


def _long_sizes(replay: Replay) -> Iterator[dict[str, int]]:
    """Yield sizes of which those of the run, or the last where all are the model's, are larger than in any probe, all
    together and each alone, where a run there takes little memory. Loops are left out: each of their turns is computed
    alone."""
    solution = replay.solution
    if solution is None or solution.way is None or solution.iterations:
        return
    if any("|" in step.value for step in replay.derived_steps):
        return
    vocabulary, probes = solution.way
    named = [name for name in reversed(probes[0]) if name in vocabulary.names and name != "B"]
    used = (tensors(step.line.equation) for step in replay.derived_steps)
    parameters = (tensor for read in used for tensor in read if tensor.key.startswith(PARAMETER))
    widths = {str(name) for tensor in parameters for size in tensor.shape for name in sympify(size).free_symbols}
    long = [name for name in named if name not in widths] or named[:1]
    shapes = [step.solved or step.shape for step in replay.derived_steps]
    for size in LONG_SIZES if long else ():
        for group in dict.fromkeys(((*long,), *((name,) for name in long))):
            at = {**probes[0], **({"B": 2} if "B" in probes[0] else {})}
            at |= {name: size + 2 * place for place, name in enumerate(group)}
            sizes = vocabulary.complete(at)
            cells = (prod(int(value_of(str(n), sizes)) for n in shape if n != UNKNOWN) for shape in shapes)
            if sum(cells) <= LONG_CELLS:
                yield at


@probe_kind("other weights and inputs again", EQUATIONS, cost=1)
def _run_with_other_weights_again(replay: Replay) -> Run:
    """Return the run in the place of one at other sizes."""
    return replay.run(Variation(True, True, True, 3))


def _match_calls(ours: Sequence[Call], theirs: Sequence[Call]) -> list[tuple[Call, Call]]:
    """Return the calls of one run with the same ones of another, nested calls included."""

    def outline(call: Call) -> tuple:
        return call.name, call.module, call.call, len(call.outputs)

    left, right = (list(map(outline, calls)) for calls in (ours, theirs))
    pairs = [(ours[i], theirs[j]) for i, j in match_in_order(left, right)]
    within = [pair for first, second in pairs for pair in _match_calls(first.inner, second.inner)]
    return [*within, *pairs]


def _first_tensor(*args, **kwargs):
    """Return the output of a block that is left out: its first tensor."""
    return next(value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))


def _map_key(key: str, keys: dict[str, str]) -> str | None:
    """Return the key of the same value in another run; None if a part of it has none."""
    turns, bar, axis = key.partition("|:")
    moved = [keys.get(turn) for turn in turns.split("|")]
    return None if None in moved else "|".join(filter(None, moved)) + bar + axis


def _precision(ops: list[OpEvent], covered: Iterable[int], owned: set) -> str:
    """Return the lowest precision of a line's numbers, casts between it and the lines before included."""
    lowest, visited = "float64", set(covered)
    if not visited:
        return ""
    waiting = list(visited)
    while waiting:
        op = ops[waiting.pop()]
        for _, dtype, *_ in (*op.inputs, *op.outputs):
            name = {"complex64": "float32", "complex128": "float64"}.get(dtype_name(dtype), dtype_name(dtype))
            if tolerance(name) > tolerance(lowest):
                lowest = name
        for _, _, maker in op.inputs:
            if isinstance(maker, int) and maker not in owned and maker not in visited:
                visited.add(maker)
                waiting.append(maker)
    return lowest


def _read(step: Step, known: frozenset[str]) -> Line | str:
    """Parse the line of a step; return the line, or the reason why it can't be parsed."""
    if KERNEL in step.note:
        return NO_WORDS
    try:
        line = read(step.latex, known)
        if line.name != step.symbol:
            raise UnreadableLatex(f"it says what {quote(line.name)} is")
        return line
    except UnreadableLatex as error:
        return f"It is not checked on other runs: its equation could not be read ({error})."


def predict(steps: Sequence[Step], lines: dict[str, Line | str], run: Run) -> Iterator[tuple[str, Outcome]]:
    """Evaluate lines, by the ids of their steps, on the tensors of another run, and compare; (id, outcome) in
    order."""
    table = {name: things[0] for name, things in names(steps).items()}
    sizes = {notation.latex(name): value for name, value in run.sizes.items()}
    values: dict[str, np.ndarray | None] = {}

    def array(key: str) -> np.ndarray | None:
        if key not in values:
            values[key] = _array(run.tensor(run.places.get(key[5:]) or "" if key.startswith("step ") else key))
        return values[key]

    operands = Operands(table, sizes, array)
    for number, step in enumerate(steps):
        tell(number, len(steps), "step")
        if (line := lines.get(step.id)) is None:
            continue
        if isinstance(line, str):
            yield step.id, Outcome(reason=line)
        elif step.of_input:
            yield step.id, Outcome(reason="It is not checked on other runs: it has a number of this input.")
        elif not run.same_sizes and (THIS_RUN_NOTE in step.note or not within_limits(step.note, run.sizes)):
            yield step.id, Outcome(reason="")
        else:
            outcome = _predict_line(step, line, run, operands, array)
            if outcome.wrong and run.label == SECOND_CALL and any(state in step.note for state in STATE):
                outcome = Outcome(reason=NOT_AGAIN)
            elif outcome.wrong and takes_fewer(step.note):
                outcome = Outcome(reason=FEWER.format(run.label))
            elif outcome.wrong and (
                takes_other_branch(step.note, run.choices) or (run.differs and depends_on_values(step.note))
            ):
                outcome = Outcome(reason=OTHER_BRANCH.format(run.label))
            yield step.id, outcome


def _predict_line(step: Step, line: Line, run: Run, operands: Operands, array) -> Outcome:
    ran = None if step.recomputed else array(f"step {step.id}")
    if not step.recomputed and (ran is None or not run.precision.get(step.id)):
        return Outcome()
    shape = _shape(step, run, ran)
    if shape is None:
        return Outcome(reason=f"With {run.label}, its shape is not known.")
    if ran is not None and ran.shape != shape:
        return _refute(run, f"its shape is {list(shape)}, and that of the tensor {list(ran.shape)}")
    try:
        computed = evaluate(line, operands, shape)
    except MissingOperand:
        return Outcome()
    except Undefined as error:
        if ran is not None:
            return _refute(run, f"it has no value there, since {error}")
        return Outcome(reason=f"With {run.label}, its equation has no value: {error}.")
    except UnreadableLatex as error:
        return Outcome(reason=f"With {run.label}, its equation has no value: {error}.")
    if ran is None:
        operands.computed[step.symbol] = computed
        return Outcome(holds=True)
    computed = zero_empty_rows(computed, ran, line, operands)
    off = deviation(computed, ran, lowest=True)
    wrong = np.argwhere(~(off <= tolerance(run.precision[step.id])))
    if not len(wrong):
        return Outcome(holds=True)
    if run.precision[step.id] == "float16" and not any(np.isfinite(ran[tuple(at)]) for at in wrong):
        return Outcome(reason=BEYOND.format(run.label))
    at = tuple(int(i) for i in wrong[0])
    difference = f"cell {list(at)} is {ran[at]:.4g}, and the equation gives {computed[at]:.4g}" if at else "it is off"
    return _refute(run, difference)


def _refute(run: Run, how: str) -> Outcome:
    return Outcome(wrong=f"It does not hold on another run, with {run.label}: {how}.")


def _shape(step: Step, run: Run, ran: np.ndarray | None) -> tuple[int, ...] | None:
    """Return the shape of a step at the sizes of a run, with the axes that are not solved as the tensor that `ran` has
    them; None if there is none."""
    if len(step.symbolic) != len(step.shape):
        return step.shape if run.same_sizes else None if ran is None else ran.shape
    known = [None if size == UNKNOWN else int(value_of(size, run.sizes)) for size in step.symbolic]
    own = step.shape if ran is None and run.same_sizes else () if ran is None else ran.shape
    if None in known and len(own) != len(known):
        return own or None
    return tuple(own[axis] if size is None else size for axis, size in enumerate(known))


def _array(tensor: torch.Tensor | None) -> np.ndarray | None:
    """Return a tensor as an array, in double precision unless it holds whole numbers."""
    if tensor is None:
        return None
    tensor = tensor.detach().cpu().resolve_conj()
    if tensor.is_complex():
        return tensor.to(torch.complex128).numpy()
    return (tensor.double() if tensor.is_floating_point() or tensor.dtype == torch.bool else tensor).numpy()


def _apply_outcomes(step: Step, outcomes: Sequence[Outcome], failed: str, notes: Sequence[str]) -> Step:
    """Return a step with the outcomes of other runs."""
    holds = 0 if step.recomputed else sum(outcome.holds for outcome in outcomes)
    wrong = next((outcome.wrong for outcome in outcomes if outcome.wrong), "")
    why = next((outcome.reason for outcome in outcomes if outcome.reason), "")
    if 0 < holds < RUNS:
        why = why or " ".join(notes) or failed
    elif not holds:
        why = why or failed or ABSENT
    return replace(step, checked=holds, refuted=bool(wrong), replayed=wrong or why)


# Checks on other runs for small or shared machines: bounded, and valid for any run of the same lines.

MOST_BYTES = 512 * 2**20
"""Bytes that another run may take: its weights and the tensors of its steps, in float64."""
MOST_FLOPS = 10**10
"""Arithmetic of another run, 2 FLOP for each multiply-add of its products."""
OF_PLAIN_RUNS = "Those are runs without the changes, which leave this line as it is."
"""Note on a line of a changed run whose outcome is that of the plain model."""
ELSEWHERE = "It was not checked on other runs: in the run whose lines were, this line reads otherwise."


class Check(NamedTuple):
    """Outcome of other runs for a line: its symbol, its equation, the names of the ops that compute it, and the fields
    of `Step` that `Trace.check` sets."""

    symbol: str
    latex: str
    ops: tuple[str, ...]
    checked: int = 0
    refuted: bool = False
    replayed: str = ""
    unseen: tuple[str, ...] = ()


def too_large(trace: Trace) -> str:
    """Return in one sentence why a model is too large to be run again unasked; "" if it is not, or if a model with one
    of its blocks of each kind is not."""
    size, flops = _cost(trace, ())
    if _fits(size, flops) or _fits(*_cost(trace, _repeated_blocks(trace))):
        return ""
    return (
        f"It was not checked on other runs: each would take {size / 2**20:,.0f} MB of memory and "
        f"{flops / 1e9:,.1f} GFLOP, more than is done unasked. In Python, `trace.check()` does it."
    )


def _fits(size: int, flops: int) -> bool:
    return size <= MOST_BYTES and flops <= MOST_FLOPS


def _cost(trace: Trace, left_out: Sequence[ModuleRecord]) -> tuple[int, int]:
    """Estimate the bytes and FLOPs of a run in float64, without some calls of modules."""
    ops = {op for module in left_out for op in range(module.first, module.last)}
    cells = sum(prod(step.shape) for step in trace.steps if not (step.ops and step.ops[-1] in ops))
    params = trace.params - sum(module.params for module in left_out)
    return 8 * (params + cells), trace.flops - sum(module.flops for module in left_out)


def _repeated_blocks(trace: Trace) -> list[ModuleRecord]:
    """Return the calls of all blocks but the first of each kind: siblings of one class and as many parameters, with
    submodules, whose names differ only in a number, and that are in no other block."""
    paths = {module.path for module in trace.modules}
    parents = {path.rpartition(".")[0] for path in paths}
    first: dict[tuple, str] = {}
    repeated: list[ModuleRecord] = []
    blocks: set[str] = set()
    for module in trace.modules:
        around, _, name = module.path.rpartition(".")
        stem = name.rstrip("0123456789")
        if stem == name or module.path not in parents or _within(module.path, blocks):
            continue
        blocks.add(module.path)
        if first.setdefault((around, stem, module.kind, module.params), module.path) != module.path:
            repeated.append(module)
    return repeated


def _within(path: str, blocks: set[str]) -> bool:
    """Return whether a module is inside one of these."""
    parts = path.split(".")
    return any(".".join(parts[:n]) in blocks for n in range(1, len(parts)))


def check(trace: Trace, plain: Mapping[str, Check] | None = None) -> Trace:
    """Return a trace with its lines checked on other runs if that is affordable, else with the reason at each.

    Of a model that is too large as a whole, one block of each kind is run. `plain` are the outcomes for the lines of
    the same model without the changes of the run: a line that reads the same here, and is computed by the same ops,
    takes its outcome from there, and only the others are checked.
    """
    if not trace.steps or trace.replay is None:
        return trace
    if not (problem := too_large(trace)):
        shortened = trace.replay.shorten(not _fits(*_cost(trace, ())))
        known = {step.id: plain[step.id] for step in trace.steps if plain and _holds(plain.get(step.id), trace, step)}
        try:
            checked = replace(trace, replay=shortened).check(step.id for step in trace.steps if step.id not in known)
            steps = tuple(
                replace(_apply(known[step.id], step), replayed=OF_PLAIN_RUNS) if step.id in known else step
                for step in checked.steps
            )
            return replace(checked, steps=steps, replay=trace.replay)
        except Exception as error:  # of a stranger's model, with other numbers: the run itself stands
            problem = f"It was not checked on other runs ({reason(error)})."
    return without_checks(trace, problem)


def without_checks(trace: Trace, problem: str) -> Trace:
    """Return a trace each line of which states why it was not checked on other runs."""
    return replace(trace, steps=tuple(replace(step, replayed=problem) for step in trace.steps))


def results(trace: Trace) -> dict[str, Check]:
    """Return the outcomes of other runs for the lines of a checked trace, by the ids of its steps."""
    return {
        step.id: Check(
            step.symbol, step.latex, _ops(trace, step), step.checked, step.refuted, step.replayed, step.unseen
        )
        for step in trace.steps
    }


def apply(checks: Mapping[str, Check], trace: Trace) -> Trace:
    """Return a trace with the outcomes of other runs for its lines, which were checked for another run of the same
    model.

    A line that does not read the same there was not checked.
    """
    return replace(trace, steps=tuple(_apply(checks.get(step.id), step) for step in trace.steps))


def _ops(trace: Trace, step: Step) -> tuple[str, ...]:
    return tuple(trace.ops[index].op for index in step.ops)


def _holds(result: Check | None, trace: Trace, step: Step) -> bool:
    """Return whether a line of the plain model reads like this step of a changed run, is computed by the same ops, and
    holds on all other runs."""
    if result is None or (result.symbol, result.latex, result.ops) != (step.symbol, step.latex, _ops(trace, step)):
        return False
    return not result.refuted and result.checked == RUNS


def _apply(result: Check | None, step: Step) -> Step:
    if result is None or (result.symbol, result.latex) != (step.symbol, step.latex):
        return replace(step, replayed=ELSEWHERE)
    fields = {name: getattr(result, name) for name in ("checked", "refuted", "replayed", "unseen")}
    return replace(step, **fields)
