"""Symbolic shapes of the values of a run, and the sizes of the factors that layouts split axes into."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from functools import lru_cache
from itertools import product
from math import prod

import sympy

from tracer.capture.calls import Call, CallLog, all_calls, refs
from tracer.expr.recurrence import PARTS
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import RearrangePattern
from tracer.graph.passes.loops import JOIN
from tracer.ops import REPEATS
from tracer.shapes import NOT_ALL, OF_DATA, UNKNOWN, Solution, equal_at, value_of
from tracer.shapes.solver import DATA, SLICE_END, SLICES, SliceBounds, Where
from tracer.symbols.notation import parse

THIS_RUN_NOTE = "It holds at the sizes of this run"
MOVES = THIS_RUN_NOTE + ": {} moves with the sizes, and no formula was found for it."
MOVE = THIS_RUN_NOTE + ": {} move with the sizes, and no formulas were found for them."
OPEN_SIZE_NOTE = THIS_RUN_NOTE + ": {} is a size for which no formula was found."
IS = THIS_RUN_NOTE + ": {} is {} in the code."
UNTRIED_NOTE = THIS_RUN_NOTE + ": it does not run at all of those that were tried, so its places are numbers."
OF_INPUT = "was computed from the values of this input: for others it is another number."
REACH = "The code takes {} at most: it was not run at larger sizes."
DATA_END_NOTE = "Of an axis whose size follows from the values of the input, the code takes {} at most."
MINIMUM_NOTE = "The code takes fewer of an axis that is shorter than {}."

TRIES = 400
"""Largest number of readings of one pattern that are compared with the shapes."""


def join_moving(remarks: Sequence[str]) -> list[str]:
    """Return remarks with those on numbers that move with the sizes in one."""
    first, last = MOVES.split("{}")
    moving = [text for text in remarks if text.startswith(first) and text.endswith(last)]
    if len(moving) < 2:
        return [*remarks]
    numbers = [text.removeprefix(first).removesuffix(last) for text in moving]
    joined = MOVE.format(" and ".join([", ".join(numbers[:-1]), numbers[-1]]))
    return [joined if text == moving[0] else text for text in remarks if text not in moving[1:]]


def solved_shapes(
    calls: CallLog, solution: Solution | None, apart: frozenset[int] = frozenset()
) -> tuple[dict[str, tuple[str, ...]], dict[str, set[int]]]:
    """Return the solved shape of each value by its key, and the values whose shape differs at some ops, with these ops.

    A difference means that at other sizes the code does something in between. The operands of the ops `apart` may have
    any shape.
    """
    solved: dict[str, tuple[str, ...]] = {}
    differ: dict[str, set[int]] = {}
    if solution is None:
        return solved, differ
    for index, shapes in enumerate(solution.outputs):
        for position, shape in enumerate(shapes):
            solved[f"{index}.{position}"] = shape
    for call in calls.entries:
        for op in call.inner or (call,):
            if op.first >= min(len(solution.inputs), op.last) or op.func is None:
                continue
            for ref, shape in zip(refs(op.arguments), solution.inputs[op.first], strict=False):
                if len(shape) != len(ref.shape):
                    continue
                if solved.setdefault(ref.key, shape) != shape and op.first not in apart:
                    differ.setdefault(ref.key, set()).add(op.first)
        if call.name == "overwrite" and call.arguments["old"].key in solved:
            solved[call.outputs[0].key] = solved[call.arguments["old"].key]
    return solved, differ


def _external_keys(calls: CallLog, operands: Collection[tuple[int, int]]) -> frozenset[str]:
    """Return the keys of tensors that no op of the run computed, from the ops that read them and their operand
    positions."""
    if not operands:
        return frozenset()
    keys = {
        (op.first, place): ref.key
        for op in all_calls(calls.entries)
        if not op.inner
        for place, ref in enumerate(refs(op.arguments))
    }
    return frozenset(key for at in operands if (key := keys.get(at, "")).startswith("constant "))


@lru_cache(maxsize=4096)
def _quotient(whole: sympy.Expr, quotient: sympy.Expr) -> sympy.Expr:
    return sympy.cancel(whole / quotient)


def _factors(size: sympy.Expr) -> list[sympy.Expr]:
    """Return the sizes that one is a product of, a square's twice; none for 1, itself for a fraction."""
    factors = []
    if not size.as_coeff_Mul()[0].is_Integer:
        return [size]
    for factor in sympy.Mul.make_args(size) if size != 1 else ():
        power, times = factor.as_base_exp()
        factors += [power] * int(times) if times.is_Integer and times > 0 else [factor]
    return factors


def _sort_factors(parts: tuple[int, ...], sizes: Sequence[sympy.Expr], order: Sequence[sympy.Expr]) -> tuple[int, ...]:
    """Return the factors of an axis in the order of the sizes that it was merged from; unchanged if these differ."""
    waiting, ordered = list(parts), []
    for size in order:
        part = next((part for part in waiting if sizes[part] == size), None)
        if part is None:
            return parts
        waiting.remove(part)
        ordered.append(part)
    return parts if waiting else tuple(ordered)


def _ops_inside(graph: Graph, *names: str) -> frozenset[int]:
    """Return the ops of the calls that calls of these names replaced."""
    inner = (inner_call for call in graph.calls if call.name in names for inner_call in call.inner)
    return frozenset(op for inner_call in inner for op in range(inner_call.first, inner_call.last))


class Shapes:
    """Symbolic shapes: `of(key)` is the shape of a value. A size without a symbol is its number."""

    def __init__(self, graph: Graph, calls: CallLog, solution: Solution | None, sizes: dict[str, int], same):
        self._graph, self.sizes = graph, sizes
        units = solution.units(sizes) if solution is not None else ()
        self.same = lambda a, b: same(a, b) or equal_at(sympy.sympify(a), sympy.sympify(b), units)
        """Return whether two sizes are equal at all multiples of the sizes of the runs."""
        self._values: dict[sympy.Expr, int] = {}
        # which ops of experts run, and how often, depends on the values
        self.solved, self.differ = solved_shapes(calls, solution, _ops_inside(graph, "experts"))
        self._solution = solution
        self.has_sizes = solution is not None and solution.has_sizes
        """True if the numbers of calls were compared with those at other sizes."""
        self.value_dependent, self.size_dependent = (
            _external_keys(calls, operands)
            for operands in ((solution.value_dependent, solution.size_dependent) if solution else ((), ()))
        )
        """Values from outside PyTorch that depend on the values of the input, and on the sizes."""
        self._solve_loops()
        self._solve_expert_lists()
        self.plain = False
        """Whether a layout was printed in numbers since this was last reset."""
        self.remarks: dict[str, None] = {}
        """Remarks on the numbers that were printed since this was last emptied."""
        self._shapes: dict[str, tuple[sympy.Expr, ...]] = {}
        self._repeated = _ops_inside(graph, "scan", "experts")

    def for_graph(self, graph: Graph) -> Shapes:
        """Return the same shapes for a rewritten graph of the run."""
        shapes = copy(self)
        shapes._graph, shapes._shapes = graph, {}
        return shapes

    def _solve_loops(self) -> None:
        """Set the shapes of values that loops carry: the shape in one iteration, and the number of iterations."""
        for call in self._graph.calls:
            if call.name == "scan" and (key := call.outputs[0].key) not in self.solved:
                body = call.arguments["body"]
                solved = self.solved.get(key.partition(JOIN)[0])
                axes = ((of, axis) for _, what, axis, of, _ in body.places if what in PARTS)
                counts = [self.solved[of][axis] for of, axis in axes if of in self.solved]
                if solved is not None:
                    behind = solved[body.axis + 1 :] if body.keepdim else solved[body.axis :]
                    self.solved[key] = (*solved[: body.axis], counts[0] if counts else UNKNOWN, *behind)

    def _solve_expert_lists(self) -> None:
        """Set the shapes of stacked experts' parameters: the number of experts and the shape of one."""
        for call in self._graph.calls:
            if call.name == "experts":
                for ref, member in zip(call.arguments["weights"], call.arguments["members"], strict=True):
                    if ref.key != member and member in self.solved:
                        self.solved[ref.key] = (str(ref.shape[0]), *self.solved[member])

    def of(self, key: str) -> tuple[sympy.Expr, ...]:
        if key not in self._shapes:
            numbers = self._graph.shape(key)
            solved = self.solved.get(key)
            if solved is None or len(solved) != len(numbers):
                solved = (UNKNOWN,) * len(numbers)
            sizes = zip(solved, numbers, strict=True)
            self._shapes[key] = tuple(sympy.Integer(n) if size == UNKNOWN else parse(size) for size, n in sizes)
        return self._shapes[key]

    def varying_numbers(self, call: Call) -> dict[Where, str]:
        """Return the numbers among a call's arguments that differ between runs, by argument name and position.

        A value is a formula, "?" if none fits, or `DATA` if it depends on the values of the input.
        """
        if self._solution is None or call.func is None:
            return {}
        return self._solution.scalars.get((call.name, call.first, call.last), {})

    def producer(self, key: str) -> Call | None:
        """Return the call that produced a value, or None."""
        return self._graph.producing_call(key)

    def unnamed_axes(self, key: str) -> frozenset[int]:
        """Return the axes of a value whose sizes have no formula: a number there is that of this run."""
        if self.depends_on_values(key):
            return frozenset(axis for axis, size in enumerate(self.of(key)) if size.is_Integer)
        return frozenset(axis for axis, size in enumerate(self.solved.get(key, ())) if size == UNKNOWN)

    def depends_on_values(self, key: str) -> bool:
        """Return whether a size of a value depends on the values of the input."""
        op = key.partition(".")[0]
        return self._solution is not None and op.isdecimal() and self._solution.notes[int(op)] == OF_DATA

    def slice_bounds(
        self, call: Call, output: int, interval: tuple[int, int], step: int = 1
    ) -> tuple[sympy.Expr, sympy.Expr] | None:
        """Return the symbolic bounds of the slice of an axis that a call takes, in numbers `interval`; None if it is no
        slice. With a step, it may end behind the last element that it takes."""
        if self._solution is None:
            return None
        if (edge := self._bounds_of(call)) is not None:
            ends = [self._end(text, number) for text, number in zip(edge[:2], interval, strict=True)]
            start, stop = map(self.number, ends)
            if start == interval[0] and 0 <= stop - interval[1] < step:
                return ends[0], ends[1]
        text = self._solution.positions.get((call.first, output))
        if text is not None and "split" not in call.op.traits and interval == (output, output + 1):
            place = self._end(text, output)
            return place, place + 1
        if text is not None and text != str(output):
            self._remark_numbers(filter(None, interval))
        return self._split_bounds(call, output, interval)

    def _bounds_of(self, call: Call) -> SliceBounds | None:
        """Return the solved bounds of the slice that a call of one op takes; None if it is no slice."""
        return self._solution.edges.get(call.first) if self._solution and call.last == call.first + 1 else None

    def has_repeats(self, before: str, after: str) -> bool:
        """Return whether a layout has more elements than its source, here or at other sizes."""
        if self._graph.count(before) != self._graph.count(after):
            return self._graph.count(before) < self._graph.count(after)
        call = self._graph.producing_call(after)
        sizes = [sympy.prod(self.of(key)) for key in (before, after)]
        return call is not None and call.op.name in REPEATS and not self.same(*sizes)

    def diverges(self, ops: Iterable[int]) -> bool:
        """Return whether one of these ops reads other operands at other sizes, or several of them are one there. Loops
        and experts are excluded: their lines hold for any number of iterations."""
        wanted = {*ops} - self._repeated
        if self._solution is None:
            return False
        return any(op in wanted and maker not in self._repeated for op, maker in self._solution.diverging) or any(
            wanted.issuperset(pair) for pair in self._solution.iterations
        )

    def remark(self, chain: Sequence[str]) -> None:
        """Add remarks on numbers in a chain that depend on the input's values, and on slices of limited or untried
        length."""
        if self._solution is None:
            return
        for call in map(self._graph.call_of, chain):
            for (name, place), text in self.varying_numbers(call).items():
                if text == DATA:
                    value = call.arguments[name]
                    self.remarks[f"{value[place] if isinstance(value, tuple) else value} {OF_INPUT}"] = None
                if name == "step" and call.name in SLICES and text != DATA:
                    self._remark_numbers([call.arguments[name]])
            edge = self._bounds_of(call)
            if edge is None and call.name in SLICES and self._solution.notes[call.first] == NOT_ALL:
                self.remarks[UNTRIED_NOTE] = None
            if call.name == "slice" and self._takes_all_of_data(call):
                self.remarks[DATA_END_NOTE.format(call.arguments["end"])] = None
            if edge is not None and edge.reach:
                self.remarks[REACH.format(edge.reach)] = None
            if edge is not None and edge.least > 1 and self._can_be_shorter(call, edge.least):
                self.remarks[MINIMUM_NOTE.format(edge.least)] = None

    def _takes_all_of_data(self, call: Call) -> bool:
        """Return whether a slice with an end takes all of an axis whose size has no formula."""
        source, axis, end = call.arguments["self"], call.arguments.get("dim", 0), call.arguments.get("end")
        size = self.solved.get(source.key, ())[axis : axis + 1 or None]
        return size == (UNKNOWN,) and isinstance(end, int) and source.shape[axis] <= end < SLICE_END

    def _can_be_shorter(self, call: Call, least: int) -> bool:
        """Return whether the sliced axis has fewer positions where all sizes are 1."""
        source = self._graph.source(call.outputs[0].key)
        shape = self.of(source) if source is not None else ()
        axis = shape[call.arguments.get("dim", 0)] if shape else sympy.Integer(least)
        return bool(axis.free_symbols) and value_of(str(axis), dict.fromkeys(map(str, axis.free_symbols), 1)) < least

    def remark_moving(self, chain: Sequence[str], places: Iterable[int]) -> None:
        """Add remarks on those bounds of a slice that are numbers of this run, if the slices of the chain had other
        numbers at other sizes."""
        calls = [call for call in map(self._graph.producing_call, chain) if call is not None and call.name in SLICES]
        if any(text != DATA for call in calls for text in self.varying_numbers(call).values()):
            self._remark_numbers(place for place in places if place > 0)

    def remark_unsolved(self, chain: Sequence[str], sizes: Sequence[sympy.Expr]) -> None:
        """Add remarks on sizes of a layout that are numbers of this run, or of this input, from axes of the chain
        without a symbol."""
        for key in chain:
            for size, number in zip(self.solved.get(key, ()), self._graph.shape(key), strict=False):
                if size != UNKNOWN or number < 2 or number not in sizes or MOVES.format(number) in self.remarks:
                    continue
                of_data = self.depends_on_values(key)
                self.remarks[f"{number} {OF_INPUT}" if of_data else OPEN_SIZE_NOTE.format(number)] = None

    def _remark_numbers(self, numbers: Iterable[object]) -> None:
        """Add remarks on numbers that move with the sizes in a way that was not found."""
        self.remarks |= dict.fromkeys(map(MOVES.format, numbers))

    def _end(self, text: str, number: int) -> sympy.Expr:
        if text == UNKNOWN:
            self._remark_numbers([number])
        return sympy.Integer(number) if text in (UNKNOWN, DATA) else parse(text)

    def _split_bounds(self, call: Call, output: int, interval: tuple[int, int]) -> tuple[sympy.Expr, sympy.Expr] | None:
        """Return the symbolic bounds of one output of a call that splits an axis into several tensors."""
        if "split" not in call.op.traits or len(call.outputs) <= output:
            return None
        dim = call.arguments.get("dim", 0)
        sizes = [(self.of(ref.key)[dim], ref.shape[dim]) for ref in call.outputs[: output + 1]]
        start, stop = (sum(number for _, number in some) for some in (sizes[:-1], sizes))
        if (start, stop) != interval:
            return None
        if any(UNKNOWN in self.solved.get(ref.key, ()) for ref in call.outputs[: output + 1]):
            self._remark_numbers(filter(None, interval))
        first = sympy.Add(*(size for size, _ in sizes[:-1]))
        return first, first + sizes[-1][0]

    def restate(self, key: str, shape: tuple) -> None:
        """Write a value's sizes as its equation does, where they are equal: `h·d_k` for `D`."""
        stated = self.of(key)
        if len(stated) == len(shape):
            self._shapes[key] = tuple(
                sympy.sympify(b) if self.same(a, b) else a for a, b in zip(stated, shape, strict=True)
            )

    def starts_at_zero(self, chain: list[str]) -> bool:
        """Return whether all slices of a chain start at 0."""
        cuts = [call for key in chain if (call := self._graph.call_of(key)).name in ("slice", "narrow")]
        return bool(cuts) and all(call.arguments.get("start", 0) in (0, None) for call in cuts)

    def factor_sizes(
        self, pattern: RearrangePattern, chain: list[str], before: tuple, after: tuple
    ) -> tuple[tuple, ...]:
        """Return a pattern in symbols: (sizes, left, right, repeated).

        It has factors of size 1 that only symbols show, such as a batch of one. `before` and `after` are the shapes
        around it.
        """
        known: dict[int, list[sympy.Expr]] = {}
        for shape in (before, after, *map(self.of, chain)):
            for size in shape:
                if not size.is_Integer:
                    known_sizes = known.setdefault(self.number(size), [])
                    if size not in known_sizes:
                        known_sizes.append(size)
        for size in [part for sizes in [*known.values()] for part in sizes if part.is_Mul]:
            for factor in size.args:  # the heads of `B*h`, which no axis has alone
                if factor.is_Symbol and factor not in (known_sizes := known.setdefault(self.number(factor), [])):
                    known_sizes.append(factor)
        choices = [[*known.get(size, ()), sympy.Integer(size)] for size in pattern.sizes]
        quotients = []
        for size, side in zip(after, pattern.right, strict=True):
            if len(side) == 2 and set(side) & set(pattern.repeated):  # heads that are repeated: h/h_kv times
                part, repeated = side if side[1] in pattern.repeated else side[::-1]
                times = [_quotient(size, known_size) for known_size in choices[part]]
                fit = [n for n in times if n.free_symbols and self.number(n) == pattern.sizes[repeated]]
                choices[repeated] = [*fit, *choices[repeated]]
                quotients.append((size, part, repeated, fit))
        orders = self._split_sizes(chain, before), self._merged_sizes(chain, after)
        for tried, sizes in enumerate(product(*choices)):
            if tried > TRIES:
                break
            if any(
                sizes[times] in fit and sizes[times] != _quotient(size, sizes[part])
                for size, part, times, fit in quotients
            ):
                continue  # h/h_kv times, where the axis is not h_kv but another size of this number
            if (
                completed := self._complete_factors(pattern, sizes, before, after, known.get(1, ()), orders)
            ) is not None:
                return completed
        self.plain = self.plain or any(size.free_symbols for size in (*before, *after))
        left, right = (tuple(map(tuple, sides)) for sides in (pattern.left, pattern.right))
        return tuple(map(sympy.Integer, pattern.sizes)), left, right, pattern.repeated

    def has_other_operand(self, key: str, call: Call) -> bool:
        """Return whether a call has another operand, computed from this value, at other sizes."""
        return any(call.first <= op < call.last for op in self.differ.get(key, ()))

    def number(self, size: sympy.Expr) -> int:
        """Return the number of a symbolic size in this run."""
        if size not in self._values:
            self._values[size] = int(value_of(str(size), self.sizes))
        return self._values[size]

    def without_units(self, size: sympy.Expr) -> sympy.Expr:
        """Return a size without the factors that are 1 in this run: `2` of `2*B` at B = 1."""
        return sympy.Mul(*(factor for factor in size.args if self.number(factor) != 1)) if size.is_Mul else size

    def _merged_sizes(self, chain: list[str], after: tuple) -> list[list[sympy.Expr]] | None:
        """Return the sizes that each axis of a result was merged from, outer to inner, by the chain's last reshapes; or
        None."""
        sizes, steps = None, reversed(chain)
        while (key := next(steps, None)) is not None and (before := self._reshape_source(key)) is not None:
            sizes = self._group_sizes(self.of(before), after) or sizes
        return sizes

    def _split_sizes(self, chain: list[str], before: tuple) -> list[list[sympy.Expr]] | None:
        """Return the sizes that each axis was split into, outer to inner, by the chain's first reshapes; or None."""
        sizes, steps, start = None, iter(chain), before
        while (key := next(steps, None)) is not None and (source := self._reshape_source(key)) is not None:
            if self.of(source) != start:
                break
            start = self.of(key)
            sizes = self._group_sizes(start, before) or sizes
        return sizes

    def _reshape_source(self, key: str) -> str | None:
        """Return the operand of a call whose result has the same numbers in the same order; None for any other call."""
        call = self._graph.producing_call(key)
        return self._graph.source(key) if call and call.op.traits & {"reshape", "identity", "squeeze"} else None

    def _group_sizes(self, sizes: tuple, whole: tuple) -> list[list[sympy.Expr]] | None:
        """Return sizes, outer to inner, grouped by the axes whose product they are; None if they do not fit or are no
        more. One that lies across two axes is split: (T, 2·B, 4) are T and B of (B·T, 8), then 2 and 4."""
        left, groups = list(sizes), []
        for size in whole:
            group: list[sympy.Expr] = []
            while left and not (group and self.same(sympy.prod(group), size)):
                outer = _quotient(size, sympy.prod(group))
                inner = _quotient(left[0], outer)
                if 1 not in (outer, inner) and sympy.fraction(outer)[1] == sympy.fraction(inner)[1] == 1:
                    group.append(outer)
                    left[0] = inner
                else:
                    group.append(left.pop(0))
            groups.append(group)
        return groups if not left and sum(map(len, groups)) > len(whole) else None

    def _complete_factors(self, pattern: RearrangePattern, sizes: tuple, before: tuple, after: tuple, units, orders):
        """Return the factors with these sizes, or None if they do not multiply to the shapes.

        `units` are sizes of 1 around them. `orders` is what each axis was split into, and what each of the result was
        merged from.
        """
        sizes, (split_sizes, merged_sizes) = list(sizes), orders
        left, right, repeated = [list(side) for side in pattern.left], [], list(pattern.repeated)
        ones = []
        for axis, (whole, side) in enumerate(zip(before, left, strict=True)):
            missing = self._missing_factor(whole, sizes, side, units)
            if missing is None:
                return None
            parts = self._unit_factors(missing, split_sizes[axis] if split_sizes else ())
            ones += range(len(sizes), len(sizes) + len(parts))
            side[:0] = range(len(sizes), len(sizes) + len(parts))
            sizes += parts
            if split_sizes and parts:
                side[:] = _sort_factors(tuple(side), sizes, split_sizes[axis])
        for whole, side in zip(after, pattern.right, strict=True):
            side = list(side)
            missing = self._missing_factor(whole, sizes, side, units)
            if missing is None:
                return None
            front = []
            while missing != 1:
                match = next((unit for unit in ones if self.same(sizes[unit], missing)), None)
                rest = sympy.Integer(1)
                if match is None:
                    match = next((unit for unit in ones if missing.has(*sizes[unit].free_symbols)), None)
                    rest = missing if match is None else _quotient(missing, sizes[match])
                    if match is None or not sympy.fraction(rest)[1].is_number:
                        front.append(len(sizes))
                        repeated.append(len(sizes))
                        sizes.append(missing)
                        break
                ones.remove(match)
                front.append(match)
                missing = rest
            factors = (*front, *side)
            right.append(_sort_factors(factors, sizes, merged_sizes[len(right)]) if merged_sizes and front else factors)
        if ones:
            return None
        return tuple(sizes), tuple(map(tuple, left)), tuple(right), tuple(repeated)

    def _unit_factors(self, missing: sympy.Expr, known: Sequence[sympy.Expr]) -> list[sympy.Expr]:
        """Return the sizes of 1 whose product is `missing`, from `known` if these fit."""
        ones = [size for size in known if size != 1 and self.number(size) == 1]
        return ones if ones and self.same(sympy.prod(ones), missing) else _factors(missing)

    def _missing_factor(self, whole: sympy.Expr, sizes, side, units) -> sympy.Expr | None:
        """Return the missing factor of an axis: 1, or sizes that are 1 in this run; None if they do not fit."""
        product = prod((sizes[part] for part in side), start=sympy.Integer(1))
        if self.same(whole, product):
            return sympy.Integer(1)
        if side and (unit := next((unit for unit in units if self.same(whole, product * unit)), None)) is not None:
            return unit
        rest = _quotient(whole, product)
        if rest.is_Integer or not sympy.fraction(rest)[1].is_number or not rest.free_symbols:
            return None
        return rest if self.number(rest) == 1 else None
