"""Rules, each one entry with its check, and the run as they read it: its record, its graph, its values, second runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, combinations
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import sympy
import torch

from tracer.capture import Recording, inputs_of, record
from tracer.capture.calls import Call, CallLog, Ref
from tracer.capture.modes import Function
from tracer.graph.attention_sites import AttentionSite, find_attention_sites
from tracer.graph.dataflow import Graph, einsum_letters, replay
from tracer.graph.index_maps import IndexMap, IndexMapCache
from tracer.lowering.aten import has_lowering
from tracer.ops import ATTENTION, MATMULS, base, is_layout
from tracer.record import AttentionRecord, Finding, Op, TensorRecord, Trace
from tracer.shapes import UNKNOWN
from tracer.shapes.variation import parameters, shadow_copy
from tracer.symbols.axes import first_crossing
from tracer.symbols.notation import parse, shape_text
from tracer.tracing import counterfactual
from tracer.utils.torch_state import seeded_draws

if TYPE_CHECKING:
    from tracer.tracing.counterfactual import Replay

__all__ = ["RULES", "Evidence", "Rule", "RunView", "live_calls", "rule"]


DOCUMENT = "docs/findings.md"
"""Where each rule has a section."""


class Evidence:
    """Evidence of a rule in a run: the ops of its calls, in order, and the values that the sentences of the rule have.

    `at` is the op whose step the finding has, by default the last. `intent` is why the code is right nevertheless.
    """

    def __init__(self, *calls: Call | int, at: int | None = None, intent: str = "", **values: Any):
        ops = ((call,) if isinstance(call, int) else range(call.first, call.last) for call in calls)
        self.ops = tuple(op for each in ops for op in each)
        self.at = self.ops[-1] if at is None and self.ops else at
        self.intent, self.values = intent, values


class Rule(NamedTuple):
    """A rule, with all that is known of it.

    Attributes:
        kind: Its name, also of its section in the document.
        over: Yields what it looks at in a run: calls, masks, second runs.
        message: What was measured, and what follows, with a `{place}` for each value of the evidence.
        fix: The repair, with such places.
        check: Returns the evidence against one thing that it looks at, None for none.
        lesson: The address of the page of the app that explains its subject, "" for none.
        runs_again: Whether it needs the model, and values of a run besides those of the trace.
        explained_by: The kinds of findings that are the cause of what it finds; it is not listed beside them.
        compares: Whether it looks at runs that can be compared: dropout is off.
        names_axes: Whether it also has to know along which axes of inputs samples and tokens lie.
    """

    kind: str
    over: Callable[[RunView], Iterable[Any]]
    message: str
    fix: str
    check: Callable[[RunView, Any], Evidence | None]
    lesson: str = ""
    runs_again: bool = False
    explained_by: tuple[str, ...] = ()
    compares: bool = False
    names_axes: bool = False

    @property
    def document(self) -> str:
        """Section about the rule: `docs/findings.md#axes-mixed`."""
        return f"{DOCUMENT}#{self.kind.replace(' ', '-')}"

    def findings(self, run: RunView) -> Iterator[Finding]:
        """Yield the findings of the rule in a run."""
        for subject in self.over(run):
            if (evidence := self.check(run, subject)) is not None:
                step = "" if evidence.at is None else run.step(evidence.at)
                message, fix = (text.format(**evidence.values) for text in (self.message, self.fix))
                message = f"{message} {run.note}" if run.note and self.names_axes else message
                yield Finding(self.kind, step, evidence.ops, message, fix, evidence.intent)


RULES: dict[str, Rule] = {}
"""All rules by their kinds, once the files of this folder are imported."""

Subject = TypeVar("Subject")
Check = Callable[["RunView", Subject], Evidence | None]


def rule(
    kind: str,
    over: Callable[[RunView], Iterable[Subject]],
    message: str,
    fix: str,
    lesson: str = "",
    runs_again: bool = False,
    explained_by: tuple[str, ...] = (),
    compares: bool = False,
    names_axes: bool = False,
) -> Callable[[Check[Subject]], Check[Subject]]:
    """Register a check as a rule; the fields are those of `Rule`."""

    def register(check: Check[Subject]) -> Check[Subject]:
        RULES[kind] = Rule(kind, over, message, fix, check, lesson, runs_again, explained_by, compares, names_axes)
        return check

    return register


DRAWS = ("rand", "bernoulli", "native_dropout", "normal", "multinomial", "uniform")
"""Beginnings of the names of ops that draw random numbers."""
KEPT_BYTES = 2**30
"""Cap in bytes on the tensors that a second run keeps."""


class RunView:
    """A trace with what follows from it. `replay` has the module that ran, None where that no longer exists. `problems`
    are sentences on second runs that failed. `note` says how axes
    are known that nobody named."""

    def __init__(self, trace: Trace, note: str = ""):
        self.trace, self.note = trace, note
        self.problems: list[str] = []

    @property
    def replay(self) -> Replay | None:
        """Recipe to run the module again."""
        return self.trace.replay  # type: ignore[return-value] # the record knows it by its protocol

    @cached_property
    def repeatable(self) -> bool:
        """True if the module is there, has values, and is small enough to be run again unasked."""
        if self.replay is None:
            return False
        tensors = [*self.replay.module.parameters(), *self.replay.module.buffers()]
        return not any(tensor.is_meta for tensor in tensors) and not counterfactual.too_large(self.trace)

    @cached_property
    def graph(self) -> Graph:
        """Calls of the run with their arguments; none for a trace without its model."""
        return Graph.of(CallLog() if self.replay is None else self.replay.calls, has_lowering)

    @cached_property
    def sites(self) -> tuple[AttentionSite, ...]:
        """Attentions of the run."""
        return tuple(find_attention_sites(self.graph))

    @cached_property
    def maps(self) -> IndexMapCache:
        """Index maps of the layouts of the run."""
        return IndexMapCache()

    def run(
        self, replacements: dict[int, torch.Tensor] | None = None, *, seed: int = 0, whole: bool = False
    ) -> Recording:
        """Run the module again and keep the values of its ops, with `replacements` of inputs by their ids.

        With `whole`, the replacements are those of parameters, in a copy.
        """
        assert self.replay is not None
        replay = self.replay
        module, args, kwargs = replay.module, replay.args, replay.kwargs
        if whole:
            module = shadow_copy(module, parameters(module) | (replacements or {}))
        elif replacements:
            args, kwargs = shadow_copy((tuple(args), dict(kwargs)), replacements)
        with torch.set_grad_enabled(replay.grad), seeded_draws(seed):
            return record(module, args, kwargs, cap=KEPT_BYTES, attention=False, calls=True)

    @cached_property
    def inputs(self) -> dict[str, torch.Tensor]:
        """Tensors that forward received, by name."""
        return {} if self.replay is None else inputs_of(self.replay.module, self.replay.args, self.replay.kwargs)

    @cached_property
    def trains(self) -> bool:
        """True if the module is in training mode, or is a function, which has no mode."""
        return self.replay is None or isinstance(self.replay.module, Function) or self.replay.module.training

    @cached_property
    def draws(self) -> bool:
        """True if the run draws random numbers, which differ between the samples of a batch."""
        dropout = any(call.arguments.get("dropout_p") for call in self.graph.calls if call.name == ATTENTION)
        return dropout or any(base(op.op).startswith(DRAWS) for op in self.trace.ops)

    @cached_property
    def values(self) -> Recording:
        """Repetition of the run, with the values of its ops kept, by the keys of the graph."""
        return self.run()

    def value(self, key: str) -> torch.Tensor | None:
        """Return the tensor of a key of the graph: of an input, a parameter or an op."""
        assert self.replay is not None
        if key.startswith("parameter "):
            tensors = {**dict(self.replay.module.named_parameters()), **dict(self.replay.module.named_buffers())}
            return tensors.get(key.removeprefix("parameter "))
        if key.startswith("input "):
            return self.values.inputs.get(key.removeprefix("input "))
        return self.values.store.get(key) if self.has_same_ops(self.values) else None

    def has_same_ops(self, *recordings: Recording) -> bool:
        """Return whether runs have the ops of the trace, so that one key is one value in all of them."""
        names = [op.op for op in self.trace.ops]
        return all([op.name for op in recording.ops] == names for recording in recordings)

    @cached_property
    def input_records(self) -> dict[str, TensorRecord]:
        """Record of each input that an op reads as a whole, by its name."""
        records: dict[str, TensorRecord] = {}
        for tensor in (tensor for op in self.trace.ops for tensor in op.inputs):
            name = str(tensor.maker).removeprefix("input ")
            if name not in self.inputs or tensor.shape != tuple(self.inputs[name].shape):
                continue
            if name not in records or (records[name].symbolic is None and tensor.symbolic):
                records[name] = tensor
        return records

    def record(self, key: str) -> TensorRecord | None:
        """Return the record of a value of the graph; None for parameters, and for what no op returned as it is."""
        if key.startswith("input "):
            return self.input_records.get(key.removeprefix("input "))
        op, _, place = key.partition(".")
        if not (op.isdecimal() and place.isdecimal()) or int(op) >= len(self.trace.ops):
            return None
        outputs = self.trace.ops[int(op)].outputs
        return outputs[int(place)] if int(place) < len(outputs) else None

    def site_of(self, record: AttentionRecord) -> AttentionSite | None:
        """Return the attention of the graph that a record is of; None where the graph has none there."""
        for site in self.sites:
            call = self.graph.producing_call(site.weights) if site.weights else self.graph.calls[site.call]
            if call is not None and call.first <= record.op < call.last:
                return site
        return None

    @cached_property
    def state(self) -> frozenset[str]:
        """Values from before the run that it writes into, such as a cache in a buffer."""
        targets = set()
        for call in self.graph.calls:
            if call.name == "overwrite" or call.name.split(".")[0].endswith("_"):
                target = (
                    call.arguments["old"] if call.name == "overwrite" else next(iter(call.arguments.values()), None)
                )
                if isinstance(target, Ref):
                    targets.add(self.graph.root(target.key))
        return frozenset(key for key in targets if key not in self.graph.producer)

    def reads_state(self, keys: Iterable[str]) -> bool:
        """Return whether values were computed from what the run writes into, and so from earlier runs."""
        return bool(self.state) and not self.state.isdisjoint(self.graph.ancestors(keys))

    def moves_with(self, key: str, cells: torch.Tensor) -> bool:
        """Return whether an output moves with these cells of a value, bool in its shape: what follows from it is
        computed again with other numbers there. True where that can't be done."""
        value = self.value(key)
        if value is None:
            return True
        return self.moves_with_values(key, [value.double().masked_fill(cells, number) for number in (0.0, 1.0)], 0.0)

    def moves_with_values(self, key: str, draws: Sequence[torch.Tensor], tolerance: float) -> bool:
        """Return whether an output differs by more than a share of its largest value between these numbers in the place
        of a value: what follows from it is computed again. True where that can't be done."""
        outputs = [ref.key for ref in self.graph.outputs if ref.key in self.graph.descendants(key)]
        results = self.results(key, draws, outputs)
        if results is None:
            return True
        pairs = [[value.nan_to_num() for value in values] for values in zip(*results, strict=True)]
        return any(float((one - two).abs().max()) > tolerance * float(one.abs().max()) for one, two in pairs)

    def results(self, key: str, draws: Iterable[torch.Tensor], targets: list[str]) -> list[list[torch.Tensor]] | None:
        """Return the values of `targets` in float64 for each of several tensors in the place of a value: what follows
        from it is computed again. None where that can't be done."""
        after, above = self.graph.descendants(key), {*self.graph.ancestors(targets)}
        calls = [
            call
            for call in self.graph.calls
            if any(ref.key in after and ref.key in above and ref.key != key for ref in call.outputs)
        ]
        results = []
        for draw in draws:
            try:
                values = replay(calls, {**self.wide_values, key: draw.double()})
                results.append([values[target].double() for target in targets])
            except Exception:  # a call that can't be run again, or of a stranger's model on other numbers
                return None
        return results

    @cached_property
    def wide_values(self) -> dict[str, torch.Tensor]:
        """Values of the run by their keys, those of floats in float64."""
        values = {name: tensor for name in self.graph.ref if (tensor := self.value(name)) is not None}
        return {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in values.items()}

    def is_learned(self, key: str) -> bool:
        """Return whether a value depends on parameters, and on no input: not on buffers alone, such as masks."""
        if self.graph.depends[key] != "p" or self.replay is None:
            return False
        learned = {f"parameter {name}" for name, _ in self.replay.module.named_parameters(remove_duplicate=False)}
        return not learned.isdisjoint(self.graph.ancestors([key]))

    def places(self, key: str) -> tuple[str, IndexMap]:
        """Return the value that one is laid out from, and where in it each of its cells lies."""
        graph, root = self.graph, self.graph.root(key)
        chain = []
        for at in graph.chain(key, root):
            call = graph.calls[graph.producer[at]]
            if "identity" not in call.op.traits:
                chain.append((call, [ref.key for ref in call.outputs].index(at)))
        shape = graph.shape(root)
        return root, self.maps.of(shape, chain) if chain else IndexMap(shape)

    def readers(self, names: Iterable[str]) -> list[int]:
        """Return the numbers of the ops that read one of these parameters, in order."""
        wanted = set(names)
        return [op.index for op in self.trace.ops if not wanted.isdisjoint(op.parameters)]

    def step(self, op: int) -> str:
        """Return the id of the step that an op belongs to, or the next that reads its result; "" for none."""
        ops, waiting, visited = self.trace.ops, [op], {op}
        while waiting:
            number = waiting.pop(0)
            if (step := ops[number].step) is not None:
                return step
            for user in self.users.get(number, ()):
                if user not in visited:
                    visited.add(user)
                    waiting.append(user)
        return ""

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """Ops that read the result of each op."""
        users: dict[int, list[int]] = {}
        for op in self.trace.ops:
            for maker in {tensor.maker for tensor in op.inputs if isinstance(tensor.maker, int)}:
                users.setdefault(maker, []).append(op.index)
        return users

    def intent(self, finding: Finding) -> str:
        """Return the reason why a finding is on purpose, from the hints of the model; "" if there is none."""
        return self.intent_at(finding.kind, finding.step, self.trace.ops[finding.ops[0]].module if finding.ops else "")

    def intent_at(self, kind: str, step: str, module: str) -> str:
        """Return the reason why findings of a kind are on purpose at a step, or in the module or parameter of a
        path."""
        hints = () if self.replay is None else self.replay.hints
        fitting = (hint.intent for hint in hints if hint.finding == kind and hint.fits(step, "", module))
        return next(filter(None, fitting), "")


def live_calls(run: RunView) -> Iterator[Call]:
    """Yield the calls that an output of a run depends on, in order."""
    return (call for index, call in enumerate(run.graph.calls) if run.graph.is_live(index))


# Views that cut across axes: numbers of one axis end up in another, and no error reports it.

VIEWS = frozenset(("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy"))
CUTS = frozenset(("slice", "narrow"))
SHIFT = (
    "A skewed matrix of relative positions: the next slice and view put each row in its place"
    " (Huang et al. 2018, section 3.4.1; Dai et al. 2019, appendix B)."
)
MOST_CELLS = 2**20
Formula: TypeAlias = Any  # sympy has no types of its own


class Crossing(NamedTuple):
    """Axis of the result before which a boundary of the result lies inside an axis of the operand."""

    result: int
    operand: int


class Reshape(NamedTuple):
    """A view: its op, and the shapes before and after it, in symbols where both have them."""

    op: Op
    before: tuple[Formula, ...]
    after: tuple[Formula, ...]


def reshapes(run: RunView) -> Iterator[Reshape]:
    """Yield the views of a run."""
    reading = _formulas(run.trace.ops, run.trace.symbols)
    for op in run.trace.ops:
        if base(op.op) in VIEWS and op.inputs and op.outputs:
            yield Reshape(op, *_comparable(op.inputs[0], op.outputs[0], reading))


@rule(
    "axes mixed",
    reshapes,
    "The view reads {before} as {after}, in the order in which the numbers lie in memory. Where axis {axis} of the"
    " result ends, no axis of the operand ends{measured}.",
    "{exchange}",
)
def find_crossing(run: RunView, view: Reshape) -> Evidence | None:
    """Find a boundary between axes that the operand of a view does not have, in symbols.

    A boundary is the product of the lengths of the first axes: where one axis of the result ends, one of the operand
    has to end, too, or has to be split evenly. Without symbols, the lengths of this run are compared.
    """
    if (crossing := cross(view.before, view.after)) is None:
        return None
    before, after = view.op.inputs[0], view.op.outputs[0]
    return Evidence(
        view.op.index,
        intent=SHIFT if _is_shift(run, view.op.index) else "",
        before=_shape(before),
        after=_shape(after),
        axis=crossing.result - 1,
        measured=_measurement_text(before, prod(after.shape[crossing.result :])),
        exchange=_exchange_text(view),
    )


def _comparable(before: TensorRecord, after: TensorRecord, reading: dict[str, Formula]) -> tuple[tuple, tuple]:
    """Return two shapes in symbols, as polynomials; in numbers where one has no symbols."""
    if all(tensor.symbolic is not None and UNKNOWN not in tensor.symbolic for tensor in (before, after)):
        return tuple(tuple(reading[size] for size in tensor.symbolic or ()) for tensor in (before, after))  # type: ignore[return-value]
    return tuple(tuple(map(sympy.Integer, tensor.shape)) for tensor in (before, after))  # type: ignore[return-value]


def _formulas(ops: Iterable[Op], symbols: Iterable) -> dict[str, Formula]:
    """Return each size of the run as a polynomial: where D is divided by h, D is written as a multiple of h."""
    sizes = {size for op in ops for tensor in (*op.inputs, *op.outputs) for size in tensor.symbolic or ()} - {UNKNOWN}
    return dict(_polynomials(tuple(sorted(sizes)), tuple((s.name, s.equals) for s in symbols if s.equals)))


@lru_cache(maxsize=64)
def _polynomials(sizes: tuple[str, ...], derived: tuple[tuple[str, str], ...]) -> tuple[tuple[str, Formula], ...]:
    equal = {parse(name): parse(text) for name, text in derived}
    formulas = {size: parse(size) for size in sizes}
    for _ in derived:  # a derived size may stand in the formula of another
        formulas = {size: formula.subs(equal) for size, formula in formulas.items()}
    for _ in range(4):
        multiples: dict[Formula, Formula] = {}
        for formula in formulas.values():
            above, below = sympy.fraction(sympy.together(formula))
            if (
                below == 1
                or formula.has(sympy.floor, sympy.ceiling)
                or not above.is_Mul | above.is_Symbol | above.is_Pow
            ):
                continue
            whole = [symbol for symbol in sorted(above.free_symbols, key=str) if symbol not in multiples]
            factors = [factor for power in sympy.Mul.make_args(below) for factor in _factors(power)]
            for number, factor in enumerate(factors):
                if whole and factor not in whole:
                    symbol = whole[number % len(whole)]
                    multiples[symbol] = multiples.get(symbol, symbol) * factor
        if not multiples:
            break
        formulas = {size: formula.subs(multiples, simultaneous=True) for size, formula in formulas.items()}
    return tuple(formulas.items())


def _factors(power: Formula) -> list[Formula]:
    root, exponent = power.as_base_exp()
    return [root] * int(exponent) if exponent.is_Integer and exponent > 0 else [power]


@lru_cache(maxsize=4096)
def cross(before: tuple[Formula, ...], after: tuple[Formula, ...]) -> Crossing | None:
    """Return the first boundary of a shape that lies inside an axis of another one of as many elements; None if there
    is none."""
    inner, outer = _boundaries(before), _boundaries(after)
    if sympy.expand(inner[-1] - outer[-1]) != 0:  # they are not of as many elements, so nothing follows
        return None
    axis = first_crossing(inner, outer, _divides)
    return None if axis is None else Crossing(axis + 1, _inside(outer[axis], inner))


def _boundaries(shape: tuple[Formula, ...]) -> list[Formula]:
    one, *products = accumulate(shape, lambda product, size: sympy.expand(product * size), initial=sympy.Integer(1))
    return products or [one]


@lru_cache(maxsize=4096)
def _divides(part: Formula, whole: Formula) -> bool:
    quotient = sympy.cancel(whole / part)
    if not quotient.free_symbols:
        return bool(quotient.is_Integer)
    if sympy.fraction(sympy.together(quotient))[1] != 1:
        return False
    return all(term.as_coeff_Mul()[0].is_Integer for term in sympy.Add.make_args(sympy.expand(quotient)))


def _inside(boundary: Formula, inner: list[Formula]) -> int:
    """Return the axis of the operand in which a boundary lies, by sizes where every symbol is a large number."""
    at = {symbol: 101 + 2 * n for n, symbol in enumerate(sorted({s for b in inner for s in b.free_symbols}, key=str))}
    number = boundary.subs(at)
    return next((axis for axis, end in enumerate(inner) if number < end.subs(at)), len(inner) - 1)


def _measurement_text(before: TensorRecord, count: int) -> str:
    """Describe from how many positions of an axis one stretch of `count` numbers of the result comes in this run."""
    if not 0 < prod(before.shape) <= MOST_CELLS or not count:
        return ""
    places = np.unravel_index(np.arange(prod(before.shape)), before.shape)
    for axis in reversed(range(len(before.shape))):
        most = max(
            (n for row in places[axis].reshape(-1, count) if (n := len(set(row))) < before.shape[axis]), default=0
        )
        if most > 1:
            name = before.symbolic[axis] if before.symbolic else str(before.shape[axis])
            return f": in this run, a stretch of {count} numbers comes from {most} places of axis {axis} ({name})"
    return ""


def _shape(tensor: TensorRecord) -> str:
    return (
        shape_text(tensor.symbolic) if tensor.symbolic and UNKNOWN not in tensor.symbolic else str(list(tensor.shape))
    )


def _exchange_text(view: Reshape) -> str:
    """Return the rearrangement with which no boundary is crossed: of two neighbours, else of one axis, which keeps the
    order of all others, else of two axes."""
    op, before, after = view
    neighbours = [(place, place + 1) for place in range(len(before) - 1)]
    if not any(cross(_exchange_axes(before, *pair), after) is None for pair in neighbours):
        for order in _moves(len(before)):
            if cross(tuple(before[axis] for axis in order), after) is None:
                return f"Exchange the axes first: `.permute({', '.join(map(str, order))})` before the view."
    for first, second in sorted(combinations(range(len(before)), 2), key=lambda pair: (pair[1] - pair[0], pair)):
        if cross(_exchange_axes(before, first, second), after) is None:
            return f"Exchange the axes first: `.transpose({first}, {second})` before the view."
    for first, second in sorted(combinations(range(len(after)), 2), key=lambda pair: (pair[1] - pair[0], pair)):
        if cross(before, _exchange_axes(after, first, second)) is None:
            sizes = op.outputs[0].symbolic or tuple(map(str, op.outputs[0].shape))
            shape = shape_text(_exchange_axes(sizes, first, second))
            return (
                f"View it as {shape}, whose axes lie so in memory, and exchange"
                f" them afterwards: `.transpose({first}, {second})`."
            )
    return "Split the axes one by one, exchange them with `.permute(…)`, and only then merge neighbours."


def _moves(rank: int) -> Iterator[tuple[int, ...]]:
    """Yield the orders of axes where one was moved past several, the nearest moves first."""
    moves = [(abs(end - start), start, end) for start in range(rank) for end in range(rank) if abs(end - start) > 1]
    for _, start, end in sorted(moves):
        order = [axis for axis in range(rank) if axis != start]
        order.insert(end, start)
        yield tuple(order)


def _exchange_axes(shape: tuple, first: int, second: int) -> tuple:
    sizes = list(shape)
    sizes[first], sizes[second] = sizes[second], sizes[first]
    return tuple(sizes)


def _is_shift(run: RunView, index: int) -> bool:
    """Return whether a view is a part of the skewing of relative positions: a view exchanges the last two lengths, a
    slice drops the first row, and another view may exchange them back."""
    op = run.trace.ops[index]
    if _exchanges(op) and any(_drops_row(run.trace.ops[user]) for user in run.users.get(index, ())):
        return True
    before = _maker(run, op)
    while before is not None and not _drops_row(before) and is_layout(before.op) and base(before.op) not in VIEWS:
        before = _maker(run, before)
    above = _maker(run, before) if before is not None and _drops_row(before) else None
    while above is not None and base(above.op) in CUTS:  # a slice of the whole
        above = _maker(run, above)
    return above is not None and _exchanges(above)


def _maker(run: RunView, op: Op) -> Op | None:
    maker = op.inputs[0].maker if op.inputs else None
    return run.trace.ops[maker] if isinstance(maker, int) else None


def _exchanges(op: Op) -> bool:
    """Return whether a view swaps the last two lengths."""
    before, after = op.inputs[0].shape, op.outputs[0].shape
    return base(op.op) in VIEWS and len(before) == len(after) > 1 and before[-2:] == after[-1:-3:-1]


def _drops_row(op: Op) -> bool:
    """Return whether a slice drops one row of matrices."""
    before, after = op.inputs[0].shape, op.outputs[0].shape
    return base(op.op) in CUTS and len(before) == len(after) > 1 and before[-2] - after[-2] == 1


MAX_CALLS = 16
"""Calls that an axis is followed through."""


class AxisSum(NamedTuple):
    """Call that sums over an axis of data derived from a value, and the axis that it sums over: the one that was
    followed, or another one of the same tensor. `between` are the calls on the path."""

    call: int
    operand: Ref
    axis: int
    softmax_axis: int
    between: tuple[int, ...]


class AxisWalk:
    """A walk from values forward through layouts and element-wise ops, to where an axis is summed over."""

    def __init__(self, run: RunView):
        self.graph, self._maps = run.graph, run.maps

    def sums(self, key: str, axis: int) -> Iterator[AxisSum]:
        """Yield the sums that an axis of a value goes into, each with its summands: a product with other data, or
        element-wise weights and a sum."""
        waiting: list[tuple[str, int, tuple[int, ...], bool]] = [(key, axis, (), False)]
        visited: set[str] = set()
        while waiting:
            key, axis, between, weighted = waiting.pop(0)
            if key in visited or len(between) > MAX_CALLS:
                continue
            visited.add(key)
            for index in self.graph.live_users[key]:
                call = self.graph.calls[index]
                name = call.op.name
                if name in MATMULS:
                    if (summed := self._product(index, key)) is not None:
                        yield AxisSum(index, self.graph.ref[key], summed, axis, between)
                elif name in ("sum", "mean") and weighted:
                    dims = call.arguments.get("dim")
                    dims = [dims] if isinstance(dims, int) else list(dims or ())
                    if dims:
                        rank = len(self.graph.shape(key))
                        summed = axis if axis in [dim % rank for dim in dims] else dims[0] % rank
                        yield AxisSum(index, self.graph.ref[key], summed, axis, between)
                elif (then := self._follow(index, key, axis)) is not None:
                    out, axis_then, multiplied = then
                    waiting.append((out, axis_then, (*between, index), weighted or multiplied))

    def _product(self, index: int, key: str) -> int | None:
        """Return the axis of an operand over which a product with other data sums; None for one with parameters."""
        graph, call = self.graph, self.graph.calls[index]
        others = [ref for ref in graph.inputs[index] if ref.key != key]
        if not others or any(graph.root(ref.key).startswith("parameter ") for ref in others):
            return None
        if any(graph.depends[ref.key] != "x" for ref in others):
            return None
        rank = len(graph.shape(key))
        if call.op.name == "einsum":
            return _einsum_axis(call, key)
        operands = [value for value in call.arguments.values() if isinstance(value, Ref)]
        position = [ref.key for ref in operands].index(key) - (len(operands) - 2)
        if position < 0:  # what is added to the product
            return None
        return rank - 1 if position == 0 else max(rank - 2, 0)

    def _follow(self, index: int, key: str, axis: int) -> tuple[str, int, bool] | None:
        """Return the result of a call on this value, the position of the axis in it, and whether it was multiplied by
        other data; None where the axis is lost."""
        graph, call = self.graph, self.graph.calls[index]
        if not call.outputs:
            return None
        out, shape = call.outputs[0], graph.shape(key)
        if graph.kind[index] == "layout" and graph.source(out.key) == key:
            number = self._maps.of(shape, [(call, 0)]).find_axis(shape, axis)
            return None if number is None else (out.key, number, False)
        if graph.kind[index] == "same" or "pointwise" in call.op.traits or call.op.name in ("dropout", "div"):
            there = axis + len(out.shape) - len(shape)
            if there < 0 or out.shape[there] != shape[axis]:
                return None
            data = any(ref.key != key and graph.depends[ref.key] == "x" for ref in graph.inputs[index])
            return out.key, there, call.op.name == "mul" and data
        return None


def _einsum_axis(call: Call, key: str) -> int | None:
    """Return the axis of an operand that an Einstein sum contracts; None where there is none, or several."""
    inputs, output = einsum_letters(call)
    operand = next(text for text, ref in zip(inputs, call.arguments["tensors"], strict=True) if ref.key == key)
    summed = [axis for axis, letter in enumerate(operand) if letter not in output]
    return summed[0] if len(summed) == 1 else None


def path_back(graph: Graph, key: str, target: str, most: int = 60) -> list[int] | None:
    """Return the calls from a value back to another that it was computed from, the last first; None if there is no
    path of at most that many."""
    parent: dict[str, tuple[str, int]] = {}
    waiting, visited = [key], {key}
    while waiting:
        at = waiting.pop(0)
        if at == target:
            path = []
            while at != key:
                at, index = parent[at]
                path.append(index)
            return path[::-1]
        index = graph.producer.get(at)
        if index is None or len(visited) > most:
            continue
        for ref in graph.inputs[index]:
            if ref.key not in visited:
                visited.add(ref.key)
                parent[ref.key] = at, index
                waiting.append(ref.key)
    return None
