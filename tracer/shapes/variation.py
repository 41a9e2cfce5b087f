"""What of a run varies with a size, or with a branch of the code."""

from __future__ import annotations

import copy
import functools
import math
import operator
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from logging import LogRecord, getLogger
from numbers import Number
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tracer.capture import RETURN_OP, OpEvent, Recording
from tracer.capture.logged_sizes import Comparison, Read, Scalars, Term
from tracer.capture.modes import Function
from tracer.capture.state import StateSnapshot
from tracer.capture.tensors import named_tensors
from tracer.shapes.alignment import Match
from tracer.shapes.solver import (
    DATA,
    SLICES,
    UNKNOWN,
    CallIndex,
    Key,
    SliceBounds,
    Solver,
    Where,
    clamp_slice,
    evaluator,
    flatten,
    is_near,
    names_of,
    solve_bound,
    value_of,
)
from tracer.utils.torch_internals import DispatchMode, fake_tensor_mode
from tracer.utils.torch_state import INFINITY_THRESHOLD

# Kinds of probes: the runs that are made besides the traced one, each kind one entry.

SOLVES, FORMULAS, CONSTANTS, EQUATIONS = "formulas", "wrong formulas", "dependence on values", "wrong equations"
"""What probes show: formulas of sizes; that one does not hold at other sizes; that a number, a size or a tensor depends
on the values of the input; that an equation does not hold on other numbers."""


class ProbeKind(NamedTuple):
    """A kind of run that is made besides the traced one.

    Attributes:
        name: What differs from the traced run.
        shows: What can be concluded from it.
        cost: How many runs it takes at most: the cheapest kinds come first.
        applies: Whether it can be made: of shapes that are being solved, or for the lines of a trace.
        make: Makes its runs of those. From a run for lines, these are predicted; None where the model does not run so.
    """

    name: str
    shows: str
    cost: int
    applies: Callable[[Any], bool]
    make: Callable[[Any], Any]


PROBES: list[ProbeKind] = []
"""All kinds, in the order of their definitions."""

Make = TypeVar("Make", bound=Callable[[Any], Any])


def probe_kind(
    name: str, shows: str, cost: int, applies: Callable[[Any], bool] = lambda subject: True
) -> Callable[[Make], Make]:
    """Register a function as the `make` of a kind of probes; the other fields are the arguments."""

    def register(make: Make) -> Make:
        PROBES.append(ProbeKind(name, shows, cost, applies, make))
        return make

    return register


def probe_kinds(shows: str, subject: Any) -> Iterator[ProbeKind]:
    """Yield the kinds of probes of a subject that show this, the cheapest first."""
    for kind in sorted(PROBES, key=lambda kind: kind.cost):
        if kind.shows == shows and kind.applies(subject):
            yield kind


# Guards: the comparisons of sizes that the code of a forward makes, such as `T > 8`, and sizes at which each has
# another outcome, where a run shows what the code does there.
#
# The term is that of PyTorch's compiler (`torch.fx.experimental.symbolic_shapes`), which takes a trace to be valid only
# where its guards hold.

FARTHEST = 8
"""Factor of the largest of each size so far up to which it may grow in another run."""
FARTHEST_SIZE = 8192 + 8
"""Largest size of a run on tensors without values: just beyond the longest texts that code usually compares with."""
MAX_GROWTH = 4
"""Factor of the largest run so far, as the product of its sizes, up to which another run may grow."""


class Guard(Comparison):
    """A comparison of two terms of formulas."""

    @classmethod
    def of(cls, comparison: Comparison, formulas: Mapping[int, str]) -> Guard | None:
        """Return a comparison of a run with the formulas of its numbers; None where a number has none."""
        with suppress(KeyError):
            compare, left, right = comparison
            return cls(compare, _with_formulas(left, formulas), _with_formulas(right, formulas))
        return None

    def outcome(self, sizes: Mapping[str, int]) -> bool | None:
        """Return the outcome of the comparison at these sizes; None where its terms have no value."""
        with suppress(ArithmeticError, ValueError, KeyError):
            return bool(self.compare(*(_evaluate(term, sizes) for term in (self.left, self.right))))
        return None

    def doubt(self, sizes: Mapping[str, int]) -> int:
        """Return how little a run at these sizes shows of the code beyond the comparison: 0 where that shows; 1 at the
        edge, where both terms are equal and `<` often chooses the same; and 2 where all compared sizes are 1, and a
        mask that is chosen often hides nothing."""
        if self._replace(compare=operator.eq).outcome(sizes):
            return 1
        return 2 * all(value_of(formula, dict(sizes)) == 1 for formula in self.formulas())

    def formulas(self) -> set[str]:
        """Return the formulas of the sizes that are compared."""
        return {str(leaf.size) for leaf in _leaves((self.left, self.right)) if isinstance(leaf, Read)}

    def numbers(self) -> set[int]:
        """Return the whole numbers that are compared, or that sizes are computed with."""
        return {
            int(leaf)
            for leaf in _leaves((self.left, self.right))
            if isinstance(leaf, (int, float)) and leaf == leaf // 1
        }


UNREACHED_NOTE = "the code compares {} with {}: runs at such sizes are too large to be tried"
"""The note of comparisons that come out alike at all sizes that were tried."""


def note_unreached(guards: Iterable[Guard]) -> str:
    """Return a note on guards that have the same outcome in all runs; "" for none."""
    compared: dict[str, set[int]] = {}
    for guard in guards:
        compared.setdefault(" and ".join(sorted(guard.formulas())), set()).add(max(guard.numbers(), default=0))
    return "; ".join(
        UNREACHED_NOTE.format(sizes, ", ".join(f"{number:,}" for number in sorted(numbers)))
        for sizes, numbers in compared.items()
    )


DECIDED_NOTE = "it is so for {}, the largest that was tried: the code decides here by a plain number of it"
"""Note on decisions by numbers that log nothing."""


def note_decided(largest: Mapping[str, int]) -> str:
    """Return a note on a decision by plain numbers of sizes, which were tried up to the `largest`."""
    return DECIDED_NOTE.format(" and ".join(f"{formula} up to {size:,}" for formula, size in largest.items()))


def _leaves(term: Term) -> Iterator[Read | float]:
    if isinstance(term, tuple) and not isinstance(term, Read):
        yield from chain.from_iterable(map(_leaves, term))
    elif not callable(term):
        yield term


def _with_formulas(term: Term, formulas: Mapping[int, str]) -> Term:
    if isinstance(term, Read):
        return Read(formulas[int(term.size)])
    return tuple(_with_formulas(part, formulas) for part in term) if isinstance(term, tuple) else term


def _evaluate(term: Term, sizes: Mapping[str, int]) -> float:
    if isinstance(term, Read):
        return int(value_of(str(term.size), dict(sizes)))
    if isinstance(term, tuple):
        return term[0](*(_evaluate(part, sizes) for part in term[1:]))
    return term


class Trials:
    """Choice of sizes at which guards have another outcome than in all runs so far.

    `runs` are the sizes of these runs, the traced one first, derived ones included, and `names` the sizes that can be
    chosen; `complete` adds the derived ones, whose formulas are `derived`.
    """

    def __init__(
        self,
        runs: Iterable[dict[str, int]],
        names: Collection[str],
        complete: Callable[[dict], dict],
        derived: dict[str, str],
    ):
        self._runs, self._names, self._complete = list(runs), tuple(names), complete
        self._derived = derived
        self._start = min(self._runs, key=lambda run: (any(run[name] == 1 for name in names), self._cost(run)))
        self._largest = {name: max(run[name] for run in self._runs) for name in names}
        self._units = {name: math.gcd(*(run[name] for run in self._runs)) for name in names}
        self._most = max(map(self._cost, self._runs))

    def _cost(self, run: Mapping[str, int]) -> int:
        return math.prod(run[name] for name in self._names)

    def add(self, sizes: dict[str, int]) -> None:
        """Add a run."""
        self._runs.append(self._complete(sizes))

    def sizes(self, guard: Guard) -> dict[str, int] | None:
        """Return the nearest sizes at which a guard has another outcome than in all runs so far, beyond the edge and
        above 1 if there are any; empty if there are none, or a run was there, and None if all would be too large."""
        start = {name: self._start[name] for name in self._names}
        outcome = guard.outcome(self._runs[0])
        known = {guard.doubt(run) for run in self._runs if guard.outcome(run) not in (outcome, None)}
        if 0 in known:
            return {}
        flips = [
            (guard.doubt(self._complete(at)), abs(math.log(at[name] / start[name])), self._is_near(at, name), at)
            for name in self._sources(guard)
            for number in self._numbers(name, guard)
            if guard.outcome(self._complete(at := {**start, name: number})) not in (outcome, None)
        ]
        flips = [flip for flip in flips if flip[0] not in known]
        if not flips:
            return {}
        near = [(doubt, distance, at) for doubt, distance, is_near, at in flips if is_near]
        if not near:
            return {} if known else None
        return min(near, key=lambda choice: choice[:2])[2]

    def far_sizes(self, guard: Guard) -> dict[str, int] | None:
        """Return the same where runs may be as large as `FARTHEST_SIZE`."""
        far = copy.copy(self)
        far._largest, far._most = dict.fromkeys(self._names, FARTHEST_SIZE // FARTHEST), sys.maxsize
        return far.sizes(guard)

    def _sources(self, guard: Guard) -> list[str]:
        """Return the sizes that can be chosen and that the terms of a guard depend on, possibly through derived
        ones."""
        sources = {name for formula in guard.formulas() for name in names_of(formula)}
        for name, formula in reversed(self._derived.items()):  # each is computed from those before it
            if name in sources:
                sources.update(names_of(formula))
        return [name for name in self._names if name in sources]

    def _is_near(self, at: dict[str, int], name: str) -> bool:
        return self._cost(at) <= MAX_GROWTH * self._most and at[name] <= FARTHEST * self._largest[name]

    def _numbers(self, name: str, guard: Guard) -> Iterator[int]:
        """Yield sizes to try, multiples of the greatest common divisor of those of all runs."""
        unit, numbers = self._units[name], guard.numbers()
        near = {number + offset for number in numbers for offset in (-1, 0, 1)}
        near |= {number * unit for number in near} | {-(-number // unit) * unit for number in near}
        most = FARTHEST * self._largest[name]
        tried = {*range(unit, most // 4 + 1, unit), *(unit << k for k in range(most.bit_length())), *near}
        return (number for number in sorted(tried) if number >= 1 and number % unit == 0)


# Dependence of a run on its sizes that no solved dimension shows: external tensors, tensors picked from lists, and
# formulas that a run at smaller sizes contradicts.

Probes = Sequence[tuple[Recording, Match]]
"""Runs at other sizes, each aligned with the traced one."""
Operand = tuple[int, int]
"""An op, and the place of an operand."""
Digests = Mapping[Operand, bytes]


def moved_constants(constants: Digests, probes: Probes) -> Iterator[Operand]:
    """Yield the operands from outside PyTorch, by their digests, that are other tensors in a probe."""
    for (op, place), digest in constants.items():
        for probe, match in probes:
            j = match[op]
            there = probe.constants.get((probe.numbers[j], place)) if j is not None else None
            if digest and there and digest != there:
                yield op, place


def solve_positions(
    solver: Solver, run: Sequence[OpEvent], returned: Sequence[int | str], positions: Mapping, probes: Probes
) -> dict[Operand, str]:
    """Solve which tensors a run takes from the lists that its ops return, such as `⌊T/2⌋` of `unbind`.

    Return a formula for each op and position, "?" for a position that has none or that several operands reach in
    several ways.
    """
    formulas: dict[Operand, str] = {}
    for (op, place), position in positions.items():
        maker = returned[place] if op == RETURN_OP else run[op].inputs[place][2]
        same = [_position(probe, match, op, place, maker) for probe, match in probes]
        if not isinstance(maker, int) or None in same:
            continue
        places, counts = zip((position, len(run[maker].outputs)), *filter(None, same), strict=True)
        whole = solver.solve(counts) if len({*counts}) > 1 else str(counts[0])
        text = solve_bound(solver, places, counts, whole) if whole != UNKNOWN else UNKNOWN
        formulas[maker, position] = text if formulas.get((maker, position), text) == text else UNKNOWN
    return formulas


def _position(probe: Recording, match: Match, op: int, place: int, maker: int | str) -> tuple[int, int] | None:
    """Return the position of the same operand in a probe and the length of its list; None if there is none."""
    at = RETURN_OP if op == RETURN_OP else match[op]
    list_op = match[maker] if isinstance(maker, int) else None
    if at is None or list_op is None or Counter(match)[at] > 1:
        return None
    position = probe.positions.get((at if at == RETURN_OP else probe.numbers[at], place))
    return None if position is None else (position, len(probe.ops[list_op].outputs))


class SmallRun:
    """A run at sizes below those of all probes, which shows the effect of a threshold, such as that of `min(T, 8)`.

    Ops in loops with fewer iterations are not compared, nor those that were solved at one batch only (`notes`).
    """

    def __init__(self, probe: Recording, match: Match, sizes: dict[str, int], notes: Sequence[str]):
        self._probe, self._value = probe, evaluator(sizes)
        self._missing = {i for i, j in enumerate(match) if j is None and not notes[i]}
        times = Counter(j for j in match if j is not None)
        self._match = [None if j is None or times[j] > 1 or note else j for j, note in zip(match, notes, strict=True)]
        self._owners = CallIndex(probe.scalars, probe.numbers)

    def refute_shapes(self, inputs: list, outputs: list) -> None:
        """Replace the formulas of dimensions that the run contradicts by "?"."""
        for i, j in enumerate(self._match):
            if j is not None and inputs[i] is not None:
                op = self._probe.ops[j]
                inputs[i], outputs[i] = self._shapes(inputs[i], op.inputs), self._shapes(outputs[i], op.outputs)

    def _shapes(self, solved: tuple, tensors: tuple) -> tuple:
        shapes = []
        for n, shape in enumerate(solved):
            real = tensors[min(n, len(tensors) - 1)][0] if tensors else ()
            if len(real) == len(shape):
                shape = tuple(
                    UNKNOWN if size != UNKNOWN and self._value(size) != number else size
                    for size, number in zip(shape, real, strict=True)
                )
            shapes.append(shape)
        return tuple(shapes)

    def refute_missing_slices(
        self, entries: Mapping[Key, Scalars], edges: dict[int, SliceBounds], inputs, outputs
    ) -> None:
        """Replace the end of slices by "?" that the run lacks although its axis is shorter: PyTorch leaves out a slice
        of a whole axis."""
        for name, i, _ in entries:
            if name != "slice" or i not in self._missing or i not in edges or inputs[i] is None:
                continue
            axis = entries[name, i, i + 1].values["dim"] % len(inputs[i][0])
            size, taken = inputs[i][0][axis], outputs[i][0][axis]
            if UNKNOWN not in (size, taken) and self._value(size) != self._value(taken):
                edges[i] = edges[i]._replace(stop=UNKNOWN)
                outputs[i] = ((*outputs[i][0][:axis], UNKNOWN, *outputs[i][0][axis + 1 :]),)

    def refute_numbers(
        self, entries: Mapping[Key, Scalars], solved: Mapping[Key, dict[Where, str]], edges: dict[int, SliceBounds]
    ) -> Iterator[int]:
        """Replace the formulas of numbers and of the bounds of slices that the run contradicts by "?".

        Yield the ops whose other arguments differ.
        """
        for key, entry in entries.items():
            there = self._owners.of(entry, self._match)
            if there is None or key not in solved:
                continue
            if self._has_other_arguments(entry, there):
                yield from range(entry.first, entry.last)
            formulas, numbers = solved[key], flatten(there)
            for where, number in flatten(entry).items():
                text = formulas.get(where, "")
                if where not in numbers or text in (UNKNOWN, DATA):
                    continue
                if not is_near(self._value(text) if text else number, numbers[where]):
                    formulas[where] = UNKNOWN
            if (edge := edges.get(entry.first)) is not None and entry.name in SLICES:
                shape = self._probe.ops[self._match[entry.first] or 0].inputs[0][0]
                bounds = (edge.start, edge.stop), clamp_slice(there, shape[there.values["dim"] % len(shape)])
                start, stop = (
                    text if text in (UNKNOWN, DATA) or self._value(text) == number else UNKNOWN
                    for text, number in zip(*bounds, strict=True)
                )
                edges[entry.first] = edge._replace(start=start, stop=stop)

    def _has_other_arguments(self, entry: Scalars, there: Scalars) -> bool:
        """Return whether a call has other arguments besides numbers; a single query may see its single key, whether it
        is causal or not."""
        ours, theirs = dict(entry.flags), dict(there.flags)
        if "is_causal" in ours and all(
            shape[-2] == 1 for shape, *_ in self._probe.ops[self._match[entry.first] or 0].inputs[:2] if len(shape) > 1
        ):
            ours["is_causal"] = theirs.get("is_causal")
        return ours != theirs or there.values.keys() != entry.values.keys()

    def refute_positions(self, run: Sequence[OpEvent], positions: Mapping, solved: dict[Operand, str]) -> None:
        """Replace the formulas of positions in lists that the run contradicts by "?"."""
        for (op, place), position in positions.items():
            j = self._match[op] if op != RETURN_OP else None
            if j is None:
                continue
            taken = run[op].inputs[place][2], position
            there = self._probe.positions.get((self._probe.numbers[j], place))
            text = solved.get(taken, UNKNOWN)
            if there is not None and text != UNKNOWN and self._value(text) != there:
                solved[taken] = UNKNOWN


# Copies of the caller's module that run at other sizes and share its parameters, and nets without values.


def shadow_copy(value: Any, shared: dict[int, torch.Tensor]) -> Any:
    """Return a deep copy in which each tensor is replaced by the entry of `shared` for its id, or copied.

    Changes in a forward (caches, counters, attributes, buffers) stay in the copy. Functions that hold modules or
    tensors, in their closures or their defaults, hold those of the copy.
    """
    memo: dict[int, Any] = dict(shared)
    functions = [item for item in _items_within(value, known=shared) if isinstance(item, FunctionType) and _holds(item)]
    for function in functions:
        memo[id(function)] = _with_empty_closure(function)
    with _Detaching():
        duplicate = copy.deepcopy(value, memo)
        for function in functions:
            _fill(memo[id(function)], function, memo)
    return duplicate


def _items_within(value: Any, known: Collection[int] = ()) -> Iterator[Any]:
    """Yield a value and all that it holds: in the attributes and hooks of modules, in containers, partials and methods,
    and in functions; nothing inside of tensors, or of the objects with the ids `known`."""
    visited, waiting = set(known), [value]
    while waiting:
        item = waiting.pop()
        if id(item) not in visited:
            visited.add(id(item))
            yield item
            waiting += _items(item)


def _items(item: Any) -> Iterable[Any]:
    match item:
        case torch.Tensor():
            return ()
        case FunctionType():
            return (*_closure(item).values(), *(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values())
        case nn.Module():
            return vars(item).values()
        case functools.partial():
            return (item.func, *item.args, *item.keywords.values())
        case MethodType():
            return (item.__self__,)
        case Mapping():
            return item.values()
        case list() | tuple() | set() | frozenset():
            return item
    return ()


def _holds(function: Any) -> bool:
    """Return whether a value holds modules or tensors."""
    return any(isinstance(item, (nn.Module, torch.Tensor)) for item in _items_within(function))


def _closure(function: FunctionType) -> dict[int, Any]:
    """Return the values in the cells of a function's closure, by the numbers of those that have one."""
    contents = {}
    for number, cell in enumerate(function.__closure__ or ()):
        with suppress(ValueError):  # an empty cell
            contents[number] = cell.cell_contents
    return contents


def _with_empty_closure(function: FunctionType) -> FunctionType:
    """Return a function of the same code without the values in its closure."""
    cells = tuple(CellType() for _ in function.__closure__ or ())
    duplicate = FunctionType(function.__code__, function.__globals__, function.__name__, None, cells)
    duplicate.__qualname__, duplicate.__module__ = function.__qualname__, function.__module__
    vars(duplicate).update(vars(function))
    return duplicate


def _fill(duplicate: FunctionType, function: FunctionType, memo: dict[int, Any]) -> None:
    """Give the copy of a function copies of the modules and tensors that the function holds, and the rest as it is."""

    def copied(held: Any) -> Any:
        return copy.deepcopy(held, memo) if _holds(held) else held

    for number, held in _closure(function).items():
        (duplicate.__closure__ or ())[number].cell_contents = copied(held)
    duplicate.__defaults__ = function.__defaults__ and tuple(map(copied, function.__defaults__))
    duplicate.__kwdefaults__ = function.__kwdefaults__ and {
        name: copied(held) for name, held in function.__kwdefaults__.items()
    }


SCALING_METHODS = ("mul", "rmul", "truediv", "div", "pow", "rpow", "neg", "add", "sub")
"""Methods that keep a tensor's shape if all other arguments are plain numbers."""

COPYABLE_LAYOUTS = torch.strided, torch.sparse_coo
"""Layouts that `copy.deepcopy` supports."""


class _Detaching(TorchFunctionMode):
    """A mode that copies tensors for which PyTorch's `deepcopy` fails: results of computations, and compressed ones."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__deepcopy__ and not (args[0].is_leaf and args[0].layout in COPYABLE_LAYOUTS):
            tensor, memo = args
            memo[id(tensor)] = copied = tensor.detach().clone()
            return copied
        return func(*args, **(kwargs or {}))


def parameters(module: torch.nn.Module) -> dict[int, torch.Tensor]:
    """Return the parameters of a module by their ids, which its copies share."""
    return {id(parameter): parameter for parameter in module.parameters()}


def without_values(module: torch.nn.Module) -> tuple[dict[int, torch.Tensor], Any]:
    """Return stand-ins without values for the parameters and buffers of a module, and the mode that they run in.

    The mode has `from_tensor`. Ops then cost next to nothing, and are those of the device that the tensors report.
    """
    mode = valueless_mode()
    tensors = [*module.parameters(), *module.buffers()]
    return {id(tensor): mode.from_tensor(tensor) for tensor in tensors}, mode


def valueless_mode() -> Any:
    """Return a mode in which tensors have shapes but no values. It raises, without logging, if a size does not fit."""
    mode = fake_tensor_mode()
    getLogger(type(mode).__module__).addFilter(_is_for_reader)
    return mode


def _is_for_reader(message: LogRecord) -> bool:
    """Return whether a log message is for the user; refusals of a size are not, since others follow."""
    return not message.getMessage().startswith("failed while attempting to run meta")


class OnMeta(DispatchMode):
    """A mode for nets on `meta`, where a batch norm that learns nothing returns statistics that it leaves empty
    elsewhere."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.native_batch_norm.default and not args[5]:
            return result[0], result[1].new_empty(0), result[2].new_empty(0)
        return result


class TooLarge(ValueError):
    """An error for a model beyond the limits of blocks or parameters, with one sentence."""


def on_meta(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Return the result of `make()` on `meta`, without memory.

    Also a `make` that reads numbers of the sequences from which it counts its sizes works. Raise `TooLarge` in one
    sentence for more parameters than can be counted.
    """
    try:
        with torch.device("meta"), _SkipInitialisation():
            return make()
    except (RuntimeError, TypeError) as error:
        if "overflow" in str(error).lower():
            raise TooLarge("a model of these sizes has more parameters than can be counted") from None
        if isinstance(error, TypeError) or "meta" not in str(error):
            raise
    with torch.device("meta"), _SkipInitialisation(), _FillSequences():
        return make().to("meta")


class _FillSequences(TorchFunctionMode):
    """A mode that creates sequences of numbers with values if no device is chosen."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.arange, torch.linspace, torch.logspace, torch.tensor, torch.as_tensor):
            kwargs = {"device": "cpu", **(kwargs or {})}
        return func(*args, **(kwargs or {}))


class _SkipInitialisation(TorchFunctionMode):
    """A mode that skips initialisation of tensors without memory.

    On `meta`, random initialisation would load PyTorch's compiler, which takes seconds and memory.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, func.__name__
        arguments = [*args, *kwargs.values()]
        if name == "randn":
            return torch.empty(*args, **kwargs)
        if arguments and isinstance(arguments[0], torch.Tensor) and arguments[0].is_meta:
            scaled = name.strip("_") in SCALING_METHODS and all(
                isinstance(argument, Number) for argument in arguments[1:]
            )
            if scaled or (name.endswith("_") and not name.endswith("__")):
                return arguments[0]
        return func(*args, **kwargs)


# Copies of a module with other numbers: other weights, other inputs, in float64.

WIDE_DTYPES = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64}
WIDE_DTYPES |= {torch.complex64: torch.complex128}
FREE_DRAWS = 3
"""Number of draws of other inputs that keep only shapes and dtypes."""
RANGE_GROWTH = 1.5
"""Factor by which the range of inputs grows from one draw to the next."""
MAX_FLAG_VALUES = 2
"""Largest number of different integers that are flags, such as those of a mask, and no ids."""
FACTOR_STD = 0.1
"""Standard deviation of the random factors of weights, and of the numbers that replace zeros."""


class Variation(NamedTuple):
    """Differences from the run: its weights, its inputs, the precision of its computation."""

    weights: bool
    inputs: bool
    wide: bool
    seed: int


def vary(
    module: nn.Module, args: tuple, kwargs: dict[str, Any], how: Variation, shared: Collection[nn.Module] = ()
) -> tuple[nn.Module, tuple, dict[str, Any]]:
    """Return a copy of a module and of its inputs, with other numbers in them.

    Buffers keep their values: they can be statistics, masks or tables. The weights of `shared` modules are not copied.
    A function that reads tensors around it cannot be copied: only its inputs vary, in their own precision.
    """
    generator = torch.Generator().manual_seed(how.seed)
    if isinstance(module, Function) and not module.owned:
        replaced = {id(tensor): other_values(tensor, generator) for _, tensor in named_tensors("", (args, kwargs))}
        return module, *shadow_copy((args, kwargs), replaced)
    inputs = {id(tensor): tensor for _, tensor in named_tensors("", (args, kwargs))}
    own = {id(parameter) for part in shared for parameter in part.parameters()}
    memo: dict[int, Tensor] = {}
    for key, tensor in inputs.items():
        memo[key] = other_values(tensor, generator, how.wide) if how.inputs else _cast(tensor, how.wide)
    for parameter in module.parameters():
        if id(parameter) in memo:
            continue
        if id(parameter) in own:
            memo[id(parameter)] = parameter
        elif type(parameter) is nn.Parameter:
            varied = other_weights(parameter, generator, how.wide) if how.weights else _cast(parameter, how.wide)
            memo[id(parameter)] = nn.Parameter(varied, requires_grad=parameter.requires_grad)
    for tensor in (*module.buffers(), *StateSnapshot(module).tensors):  # also those that are plain attributes
        if id(tensor) not in memo and type(tensor) is Tensor:
            memo[id(tensor)] = _cast(tensor, how.wide)
    return shadow_copy((module, tuple(args), dict(kwargs)), memo)


def other_weights(parameter: Tensor, generator: torch.Generator, wide: bool) -> Tensor:
    """Return a parameter with its numbers permuted and scaled by up to about a third, so that their statistics stay.

    Zeros become small random numbers; a constant parameter becomes random.
    """
    if not parameter.is_floating_point() or not parameter.numel():
        return _cast(parameter, wide)
    order = torch.randperm(parameter.numel(), generator=generator).to(parameter.device)
    values = parameter.detach().flatten()[order]
    del order  # an embedding is large, and each of these as large as it is
    weights = _normal(values, generator).mul_(FACTOR_STD).exp_().mul_(values)
    if (zero := values == 0).any():
        weights[zero] = FACTOR_STD * _normal(weights[zero], generator)
    return _like(parameter, weights, wide)


def other_inputs(inputs: Any, draw: int) -> Any:
    """Return nested inputs with other values in their tensors.

    The first `FREE_DRAWS` draws keep only shapes and dtypes. Later ones keep masks and positions, and the integers of
    each row. Raise ValueError if no value changed.
    """
    generator = torch.Generator().manual_seed(draw)
    free = draw if draw <= FREE_DRAWS else 0
    known = {id(tensor): tensor for _, tensor in named_tensors("", inputs) if tensor.numel()}
    changed = {key: other_values(tensor, generator, free=free) for key, tensor in known.items()}
    if known and not any(map(_has_changed, known.values(), changed.values())):
        raise ValueError("its inputs have no other values")
    return shadow_copy(inputs, changed)


def _has_changed(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have different numbers; False if these can't be read."""
    return not (a.is_meta or a.is_nested or a.layout != torch.strided) and not torch.equal(a, b)


def other_values(tensor: Tensor, generator: torch.Generator, wide: bool = False, free: int = 0) -> Tensor:
    """Return an input of the same dtype and shape with other values in its range, more of them small.

    Integers are permuted in their row, so that end and padding tokens stay in it. Masks stay, of 0 and 1 or with
    infinities, and so do positions: integers that rise in equal steps. With `free` floats reach further, and all others
    are drawn from the existing ones except the largest, so that counts and extremes change, too.
    """
    if not tensor.numel() or tensor.is_meta or tensor.is_nested or tensor.layout != torch.strided:
        return tensor.detach()
    if tensor.is_complex():
        return torch.view_as_complex(other_values(torch.view_as_real(_cast(tensor, wide)), generator, wide, free))
    if not tensor.is_floating_point() or _is_float_mask(tensor):
        if free:
            return _like(tensor, _redraw(tensor.detach().flatten(), generator), wide)
        if tensor.is_floating_point() or _is_regular(tensor):
            return _cast(tensor, wide)
        keys = torch.rand(tensor.shape, generator=generator).to(tensor.device)
        return _like(tensor, tensor.detach().gather(-1, keys.argsort(-1)), wide)
    low, high = (float(end) * (RANGE_GROWTH**free if end * sign > 0 else 1) for end, sign in _ends(tensor))
    share = 0.05 + 0.9 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device) ** 2
    return _like(tensor, low + share * ((high - low) or 1.0), wide)


def _ends(tensor: Tensor) -> tuple[tuple[Tensor, int], tuple[Tensor, int]]:
    """Return the least and the largest number, each with the sign of its direction."""
    low, high = tensor.detach().double().aminmax()
    return (low, -1), (high, 1)


def _redraw(numbers: Tensor, generator: torch.Generator) -> Tensor:
    """Return numbers drawn from the existing ones, except the largest of more than `MAX_FLAG_VALUES`; flags from 0 and
    1.

    A single different number becomes one less.
    """
    known = numbers.unique()
    if ((known == 0) | (known == 1)).all():
        known = torch.tensor([0, 1]).to(known)
    elif len(known) > MAX_FLAG_VALUES:
        known = known[:-1]
    elif len(known) == 1:
        known = known - 1
    tokens = known[torch.randint(len(known), (len(numbers),), generator=generator).to(numbers.device)]
    return tokens if not torch.equal(tokens, numbers) else torch.where(tokens == known[0], known[-1], known[0])


def _is_float_mask(tensor: Tensor) -> bool:
    """Return whether floats are a mask: with infinities or their stand-ins, or of 0 and 1."""
    (low, _), (high, _) = _ends(tensor)
    return not (max(-low, high) <= INFINITY_THRESHOLD) or _is_binary(tensor.detach())


def _is_binary(values: Tensor) -> bool:
    """Return whether numbers are a mask of both 0 and 1."""
    return bool(((values == 0) | (values == 1)).all()) and bool(values.any()) and len(values) > 1


def _is_regular(tensor: Tensor) -> bool:
    """Return whether integers are a mask, or rise in equal steps: positions, rows, flags."""
    if tensor.min() >= 0 and tensor.max() <= 1:
        return True
    steps = tensor.diff(dim=-1) if tensor.dim() else tensor
    return not tensor.dim() or bool((steps == steps.flatten()[:1]).all())


def _normal(values: Tensor, generator: torch.Generator) -> Tensor:
    dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
    return torch.randn(len(values), generator=generator, dtype=dtype).to(values.device)


def _cast(tensor: Tensor, wide: bool) -> Tensor:
    return tensor.detach().to(WIDE_DTYPES.get(tensor.dtype, tensor.dtype) if wide else tensor.dtype, copy=True)


def _like(tensor: Tensor, values: Tensor, wide: bool) -> Tensor:
    """Return the values in the shape and memory layout of a tensor."""
    dtype = WIDE_DTYPES.get(tensor.dtype, tensor.dtype) if wide else tensor.dtype
    tensor_like = torch.empty_like(tensor, dtype=dtype, requires_grad=False)
    return tensor_like.copy_(values.reshape(tensor.shape))
