"""Builder of the equation of each line: a node for every call, with layouts between them as textbooks print them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import sympy
import torch

from tracer.capture.calls import Call, CallLog, ChangedValue, Layout, Ref, refs
from tracer.expr import Node, ShapeError, Tensor, infer
from tracer.expr.arithmetic import Cast, Over, Plus, Softmax, Where
from tracer.expr.embeddings import RepeatKV
from tracer.expr.function_call import Kernel, Opaque, Scalar
from tracer.expr.indexing import CausalMask, CausalMaskBetween, IndexPut, Provided
from tracer.expr.rearrangements import SplitHeads
from tracer.graph.dataflow import Graph
from tracer.graph.index_maps import IndexMap, IndexMapCache, contiguous_strides, from_strides
from tracer.graph.value_shapes import Shapes
from tracer.lowering.aten import has_lowering, node
from tracer.lowering.call_arguments import BoundCall, node_of, scale, split_factor
from tracer.lowering.rewrites import NoSteps, RearrangePrinter, lower_loop, simplify
from tracer.record import dtype_name
from tracer.textbook.claims import Context, Subject, Why
from tracer.textbook.explanations import WHY
from tracer.textbook.explanations import scores as reason_of
from tracer.textbook.names import ROLE_LABELS, Hints, ParameterSymbols, free_id, words
from tracer.textbook.step_selection import StepPlan


class NoPattern(ValueError):
    """Raised for a layout that no pattern describes."""


def _within(part: Layout, into: Layout) -> IndexMap | None:
    """Return the index of each element of a memory slice in a tensor; None if they do not overlap.

    Raise Unsupported if they overlap in part.
    """
    lies, places = from_strides(*into), from_strides(*part)
    if from_strides(into.shape, contiguous_strides(into.shape), into.offset).equals(lies):
        first = part.offset - into.offset
        last = part.last - into.offset
        inside, outside = first >= 0 and last < lies.size, last < 0 or lies.size <= first
        numbers = IndexMap(part.shape, lambda cells: places.at(cells) - into.offset)
    else:
        memory, wanted = lies.table().reshape(-1), places.table().reshape(-1)
        order = np.argsort(memory)
        nearest = order[np.searchsorted(memory, wanted, sorter=order).clip(max=len(order) - 1)]
        is_inside = memory[nearest] == wanted
        inside, outside = bool(is_inside.all()), not is_inside.any()
        numbers = IndexMap(part.shape, nearest.__getitem__)
    if outside or not places.size:
        return None
    if not inside:
        raise NoPattern(f"a write into {into} through {part}")
    return numbers


def _position(call: Call, key: str) -> int:
    """Return the index of a value among the outputs of its call."""
    return next(i for i, ref in enumerate(call.outputs) if ref.key == key)


class ExpressionBuilder:
    """A builder of equations, with a `Tensor` for every named value of the run."""

    def __init__(self, graph: Graph, plan: StepPlan, names: ParameterSymbols, shapes: Shapes, fits):
        self.graph, self.plan, self.names, self.shapes, self.fits = graph, plan, names, shapes, fits
        self.ids: dict[str, str] = {}
        self.condition: Tensor | None = None
        """The condition on token positions that the code tested before it used a causal mask."""
        self.numbers: dict[str, float] = {}
        """Constants without axes that are the same in all runs, by their keys."""
        self._constants: dict[str, str] = {}
        self._layouts = RearrangePrinter(shapes)
        self._parts: dict[str, Node] = {}
        self.changed: dict[str, Tensor] = {}
        """The tensors that stand in the place of values that an intervention replaced, by the keys of these: lines and
        parameters."""
        self.transposed: set[str] = set()
        """The parameters that the lines read with their last two axes exchanged."""

    @cached_property
    def _maps(self) -> IndexMapCache:
        """The index maps of layouts, which subgraphs share."""
        return IndexMapCache()

    def for_subgraph(self, graph: Graph, plan, parts: dict[str, Any]) -> ExpressionBuilder:
        """Return a builder for a subgraph with these tensors as its inputs."""
        builder = ExpressionBuilder(graph, plan, self.names, self.shapes.for_graph(graph), self.fits)
        builder._parts, builder._maps = parts, self._maps
        return builder

    def tensor(self, key: str) -> Tensor:
        """Return the tensor of a line or of an input."""
        if key in self._parts:
            return self._parts[key]
        if key in self.changed:
            return self.changed[key]
        if key in self.plan.named:
            return self.line(key)
        shape = self.shapes.of(key)
        if key.startswith("parameter "):
            return Tensor(self.names.parameter(key), shape, key)
        if key.startswith("input "):
            return Tensor(self.names.input_symbol(key), shape, key)
        if key not in self._constants:
            self._constants[key] = rf"\mathbf{{C}}_{{{len(self._constants) + 1}}}"
        return Tensor(self._constants[key], shape, key)

    def line(self, key: str) -> Tensor:
        """Return the tensor that a line computes, which is not what later lines read if it was changed."""
        return Tensor(self.names.of[key], self.shapes.of(key), self.ids[key])

    def inner_tensor(self, key: str) -> Tensor:
        """Return the tensor of a value computed in steps inside its own equation, also if it was changed."""
        return self.line(key) if key in self.changed else self.tensor(key)

    def before_change(self, key: str) -> Node:
        """Return the node of a line or parameter before its change; a parameter means the same as in other lines,
        transposed where these read it so."""
        if not key.startswith("parameter "):
            return self.line(key)
        name, shape = self.names.parameter(key), self.shapes.of(key)
        return Tensor(name, shape[::-1], key, transposed=True).T if key in self.transposed else Tensor(name, shape, key)

    def change(self, change: ChangedValue, calls: CallLog) -> Node:
        """Return the right side of the line of a changed value, from the calls that computed it."""
        inside = CallLog(calls.entries[change.first : change.last], outputs=(change.after,))
        graph = Graph.of(inside, has_lowering)
        read = {key for key in graph.ref if key in self.plan.named}
        changed = {
            candidate.after.key: self.changed[candidate.before.key]
            for candidate in calls.changes
            if candidate.before.key in self.changed
        }
        before = {key for key in graph.ref if key.startswith("parameter ")} | {change.before.key}
        parts = {key: self.tensor(key) for key in read} | changed | {key: self.before_change(key) for key in before}
        parts.pop(change.after.key, None)
        builder = self.for_subgraph(graph, NoSteps(graph), parts)
        builder._constants = self._constants
        return builder.value(change.after.key)

    def with_condition(self, mask: Node) -> Node:
        """Return a causal mask, with the condition that the code tested before it used the mask, if any."""
        return mask if self.condition is None else Provided(mask, self.condition)

    def equation(self, key: str) -> Node:
        """Return the right side of a line."""
        raw = self.plan.raw(key)
        if raw is None:
            start = self.plan.named_root(self.graph.layout_source(key))
            return simplify(self._apply_chain(self._start(start), start, key))
        if raw != key and (expression := self._merge_layouts(raw, key)) is not None:
            return expression
        expression = self._lower_call(raw)
        return simplify(expression if raw == key else self._apply_chain(expression, raw, key), self.shapes.of(key))

    def opaque(self, key: str, reason: str) -> Node:
        """Return the right side of a line without an equation: its call, with its lines and inputs as operands."""
        raw = self.plan.raw(key)
        index = self.graph.producer[raw or key]
        calls = (index,) if raw is None else self.plan.inner_calls[raw]
        roots = (self.graph.root(ref.key) for call in calls for ref in self.graph.inputs[call])
        outside = (root for root in roots if root not in self.graph.producer)
        operands = dict.fromkeys((*self.plan.operands(key), *outside))
        name = self.graph.calls[index].op.name
        return Opaque(*map(self.tensor, operands), name=name, reason=reason, result=self.shapes.of(key))

    def _merge_layouts(self, raw: str, key: str) -> Node | None:
        """Return a linear map of the last axis with the layouts before and after it merged; None for other calls."""
        graph, call = self.graph, self.graph.call_of(raw)
        name, matrix = call.op.operands or ("", "")
        if not name or not call.arguments[matrix].key.startswith("parameter "):
            return None
        operand_key, layout = call.arguments[name].key, self._map(raw, key)
        count = graph.shape(raw)[-1]
        if (
            len(layout.shape) < 2
            or layout.shape[-1] != count
            or (layout.at(layout.cells) % count != layout.cells % count).any()
        ):
            return None
        from_line = self._from_line(operand_key)
        if from_line is None or not self.shapes.same(self.shapes.of(key)[-1], self.shapes.of(raw)[-1]):
            return None
        start, places, since = from_line
        places = self._maps.rows(places, graph.shape(operand_key)[-1], layout)
        shape = (*self.shapes.of(key)[:-1], self.shapes.of(operand_key)[-1])
        chain = [*graph.chain(key, raw), raw, operand_key, start]
        operand = self._rearrange(self.tensor(start), places, chain, start, shape, False)
        if operand is None:
            return None
        operand = self._cast(operand, graph.chain(operand_key, since))
        bound = self._bind(call, 0, False)
        bound.arguments[name] = simplify(operand)
        bound.with_layout(name, shape, places.shape)
        return simplify(self._cast(node(bound), graph.chain(key, raw)))

    def _from_line(self, key: str) -> tuple[str, IndexMap, str] | None:
        """Return the line that a value is a rearrangement of, the index map, and the source of both in the run; or
        None."""
        near = self.plan.named_root(key)
        if near in self.plan.named:
            return near, self._map(near, key), near
        root = self.graph.root(near)
        return (self.plan.ends[root], self._inverse(root, key), root) if root in self.plan.ends else None

    def attention(self, key: str) -> tuple[BoundCall, Callable[[Node], Node]]:
        """Return the bound call of a fused attention, and a function that applies the layouts after it."""
        raw = self.plan.computed_key(key)
        bound = self._bind(self.graph.call_of(raw), 0, False)
        return bound, lambda expression: expression if raw == key else self._apply_chain(expression, raw, key)

    def _start(self, key: str) -> Node:
        """Return the node at the start of a chain."""
        if key in self.plan.named:
            return self.tensor(key)
        root = self.graph.root(key)
        if root in self.numbers and root not in self._parts:
            return node_of(self.numbers[root])
        return self._lower_call(root) if root in self.graph.producer else self.tensor(root)

    def value(self, key: str, loose: bool = False) -> Node:
        """Return the node of an operand; with `loose`, without leading axes of size 1."""
        graph, plan = self.graph, self.plan
        near = plan.named_root(key)
        if near in plan.named:
            return self._apply_chain(self.tensor(near), near, key, loose=loose)
        root = graph.root(near)
        if root in plan.ends:
            return self._rearrange_line(plan.ends[root], root, key, loose)
        return self._apply_chain(self._start(root), root, key, loose=loose)

    def _lower_call(self, key: str) -> Node:
        """Return the node of the call that computed a value."""
        call = self.graph.call_of(key)
        position = _position(call, key)
        if call.name == "overwrite":
            return self._lower_overwrite(call)
        if call.name == "scan":
            return lower_loop(self, call)
        broadcasts = "broadcast" in call.op.traits
        expression = node(self._bind(call, position, broadcasts))
        if broadcasts and not self._as_stated(expression, key):
            return simplify(node(self._bind(call, position, False)))
        return simplify(expression)

    def _as_stated(self, expression: Node, key: str) -> bool:
        """Return whether a node without leading axes of size 1 still has the shape of the run."""
        try:
            inferred = infer(expression, self.fits)
        except ShapeError:
            return False
        stated = self.shapes.of(key)
        ones = any(1 == length != size for length, size in zip(inferred, stated, strict=False))  # here alone
        return len(inferred) == len(stated) and not ones and all(map(self.fits, inferred, stated))

    def _bind(self, call: Call, position: int, loose: bool) -> BoundCall:
        arguments: dict[str, Any] = {}
        shapes: dict[str, Any] = {}
        numerics: dict[str, Any] = {}
        dtypes: dict[str, Any] = {}
        for name, value in call.arguments.items():
            if isinstance(value, Ref):
                arguments[name] = self.value(value.key, loose)
                shapes[name], numerics[name], dtypes[name] = self.shapes.of(value.key), value.shape, value.dtype
            elif isinstance(value, tuple) and any(isinstance(item, Ref) for item in value):
                several = [item if isinstance(item, Ref) else None for item in value]
                arguments[name] = [self.value(item.key) if isinstance(item, Ref) else item for item in value]
                shapes[name] = [item and self.shapes.of(item.key) for item in several]
                numerics[name] = [item and item.shape for item in several]
                dtypes[name] = [item and item.dtype for item in several]
            else:
                arguments[name] = list(value) if isinstance(value, tuple) else value
        result = call.outputs[position]
        of_result = position, self.shapes.of(result.key), result.shape
        of_run = self.shapes.varying_numbers(call), self.shapes.remarks.setdefault, self.shapes.sizes
        bound = BoundCall(call.func, arguments, shapes, numerics, dtypes, *of_result, *of_run)
        bound.unnamed = {
            name: self.shapes.unnamed_axes(value.key)
            for name, value in call.arguments.items()
            if isinstance(value, Ref)
        }
        bound.result_dtype = result.dtype
        weight = arguments.get("weight")
        if isinstance(weight, Tensor) and self.names.has_two_layouts(weight.key):
            bound.tied = frozenset((weight,))
        return bound

    def _lower_overwrite(self, call: Call) -> Node:
        """Return a tensor after a write into a slice of it. Raise Unsupported if it is not a slice of each axis."""
        old, new, into, part = (call.arguments[name] for name in ("old", "new", "into", "part"))
        if (places := _within(part, into)) is None:
            return self.value(old.key)
        if places.equals(IndexMap(into.shape)):
            return self.value(new.key)
        if (pattern := self._maps.pattern(places, into.shape)) is None:
            raise NoPattern(f"a write into {into} through {part}")
        ranges: list[Any] = []
        shape, written = self.shapes.of(old.key), self.shapes.of(new.key)
        chain, used = self._views(new.key, into), set[str]()
        self.shapes.remark(chain)
        for axis, (size, span, side) in enumerate(zip(shape, pattern.slices, pattern.left, strict=True)):
            if span is None:
                ranges.append((None, None, None))
            elif not side and len(places.shape) < len(into.shape):
                ranges.append(self._layouts.index(chain, span, axis, used))
            else:
                ranges.append(self._layouts.bounds(chain, span, axis, used, size, pattern, side, written)[0])
        return IndexPut(self.value(old.key), self.value(new.key), entries=tuple(ranges))

    def _views(self, new: str, into: Layout) -> list[str]:
        """Return the views, last first, by which the code took the part that a call wrote to produce this value."""
        call = self.graph.producing_call(new)
        first = next(refs(call.arguments), None) if call is not None else None
        views: list[str] = []
        key = first.key if first is not None else None
        while (
            key is not None
            and self.graph.shape(key) != into.shape
            and (call := self.graph.producing_call(key)) is not None
        ):
            if call.op.name == "overwrite":
                key = call.arguments["old"].key
                continue
            views.append(key)
            key = self.graph.source(key)
        return views

    def _map(self, start: str, end: str) -> IndexMap:
        chain = [(call := self.graph.call_of(key), _position(call, key)) for key in self.graph.chain(end, start)]
        return self._maps.of(self.graph.shape(start), chain)

    def _apply_chain(self, expression: Node, start: str, end: str, *, loose: bool = False) -> Node:
        """Return `expression`, the value `start`, with the layouts and casts of the chain to `end`."""
        return self._cast(self._apply_layouts(expression, start, end, loose), self.graph.chain(end, start))

    def _cast(self, expression: Node, chain: list[str]) -> Node:
        """Return `expression` with the casts of a chain that lose precision."""
        for key in chain:
            if dtype := self.graph.rounding_dtype(key):
                expression = Cast(expression, to=dtype_name(dtype))
        return expression

    def _apply_layouts(self, expression: Node, start: str, end: str, loose: bool) -> Node:
        """Return `expression`, the value `start`, with the layouts of the chain to `end`."""
        if start == end:
            return expression
        chain = self.graph.chain(end, start)
        self.shapes.remark(chain)
        if all(self.graph.kind[self.graph.producer[key]] == "same" for key in chain) and (
            self.graph.shape(start) == self.graph.shape(end)
        ):
            return expression
        rearranged = self._rearrange(expression, self._map(start, end), chain, start, self.shapes.of(end), loose)
        if rearranged is not None:
            return simplify(rearranged)
        if len(chain) == 1:
            return self._kernel(expression, end)
        middle = chain[-2]
        return self._apply_layouts(self._apply_layouts(expression, start, middle, False), middle, end, loose)

    def _kernel(self, expression: Node, end: str) -> Node:
        """Return a layout without a pattern, by PyTorch's own op."""
        call = self.graph.call_of(end)
        arguments: dict[str, Any] = {
            name: self.value(value.key) if isinstance(value, Ref) else list(value) if type(value) is tuple else value
            for name, value in call.arguments.items()
        }
        first = next(name for name, value in call.arguments.items() if isinstance(value, Ref))
        arguments[first] = expression
        return Kernel.of(call.func, arguments, _position(call, end), self.shapes.of(end))

    def _rearrange_line(self, end: str, root: str, key: str, loose: bool) -> Node:
        """Return the value `key` as a rearrangement of the line at `end`, both rearranged from `root`."""
        chain = [*self.graph.chain(end, root), *self.graph.chain(key, root), root]
        places, after = self._inverse(root, key), self.shapes.of(key)
        rearranged = self._rearrange(self.tensor(end), places, chain, end, after, loose)
        if rearranged is None:
            raise NoPattern(f"the layout between {end} and {key}")
        return self._cast(simplify(rearranged), self.graph.chain(key, root))

    def _inverse(self, root: str, key: str) -> IndexMap:
        """Return the index map from a computed value's line to `key`, both rearranged from `root`."""
        there = self._map(root, self.plan.ends[root])
        return self._maps.inverse(there, self.graph.shape(root), self._map(root, key) if key != root else None)

    def _rearrange(
        self, expression: Node, places: IndexMap, chain, start: str, after: tuple, loose: bool
    ) -> Node | None:
        """Return `expression`, the value `start`, with this index map, in the shape `after`; None without a pattern."""
        pattern = self._maps.pattern(places, self.graph.shape(start))
        if pattern is None:
            return None
        return self._layouts.node(expression, pattern, chain, self.shapes.of(start), after, loose)


# Fused attention as the three lines that it computes: scores, weights, context (Vaswani et al. 2017, equation 1).

SCALE_TOLERANCE = 1e-6
"""How far a scale may be from the usual one, as a share of it."""
PARTS = {"mask": "causal M", "scores": "S", "weights": "A"}


def fused_lines(
    writer, key: str, part: str, masks: dict, hints: Hints, subject: Subject
) -> tuple[tuple[dict, ...], Node]:
    """Return the lines of scores and weights, as arguments of `Line`, and the equation of the result.

    The kernel never stores scores and weights. `masks` are the masks by tower (`part`) and length that have a line; a
    new one is added. Claims on these lines are evaluated on `subject`.
    """
    bound, restore_layout = writer.attention(key)
    q, k, v = bound["query"], bound["key"], bound["value"]
    shapes = {name: bound.shape(name) for name in ("query", "key", "value")}
    heads, shared = shapes["query"][-3:-2], shapes["key"][-3:-2]
    if bound.get("enable_gqa") and heads != shared:
        k, v = RepeatKV(k, heads[0]), RepeatKV(v, heads[0])
    result, lines = writer.line(key), []
    base, number = _split(result.key)
    q, scaling = _split_scale(writer, bound, q)
    scores = Over(q @ k.T, sympy.sqrt(shapes["query"][-1])) if scaling is None else scale(bound, q @ k.T, scaling)
    S_q, S_k = shapes["query"][-2], shapes["key"][-2]
    mask = bound.get("attn_mask")
    if bound.get("is_causal"):
        if (part, S_q, S_k) not in masks:
            id = ".".join(filter(None, (part, "mask")))
            hidden = Tensor(
                writer.names.mask(part), (S_q, S_k), id if id not in writer.ids.values() else f"{base}.mask"
            )
            masks[part, S_q, S_k] = hidden
            causal = CausalMask(S_q) if writer.shapes.same(S_q, S_k) else CausalMaskBetween(S_q, S_k)
            subject.masks[hidden.key] = writer.with_condition(causal)
            lines.append(_line("mask", hidden, subject.masks[hidden.key], WHY["flag"]) | {"layer": None})
        scores = Plus(scores, masks[part, S_q, S_k])
    elif mask is not None:
        shown = str(bound.dtype("attn_mask")) == "torch.bool"
        scores = Where(mask, scores, Scalar(-sympy.oo)) if shown else Plus(scores, mask)
    shape = (*shapes["query"][:-2], S_q, S_k)
    taken = set(writer.ids.values())  # by lines outside this kernel
    score_tensor = Tensor(_letter(result, "S"), shape, free_id(f"{base}.scores{number}", taken))
    weights = Tensor(_letter(result, "A"), shape, free_id(f"{base}.weights{number}", taken))
    reason = WHY.get(reason_of(scores, subject.masks), ())
    lines += [
        _line("scores", score_tensor, scores, reason),
        _line("weights", weights, Softmax(score_tensor), WHY["weights"]),
    ]
    applied = _drop_out(weights, bound.get("dropout_p"))
    return tuple(_apply_hints(line, hints, subject, key) for line in lines), restore_layout(applied @ v)


def _drop_out(weights: Tensor, share: float | None) -> Node:
    """Return the weights that values are multiplied by: those of an active dropout are random."""
    if not share:
        return weights
    arguments = {"input": weights, "p": share, "train": True}
    return Kernel.of(torch.ops.aten.dropout.default, arguments, 0, weights.shape)


def _split(id: str) -> tuple[str, str]:
    """Return the module that contains an attention's lines, and their number there, from the id of its context."""
    match = re.fullmatch(r"(.*)\.context(\d*)", id)
    return (match[1], match[2]) if match else (id, "")


def _split_scale(writer, bound, q: Node) -> tuple[Node, float | None]:
    """Return the queries and the scale of the scores.

    If queries were multiplied by 1/√d_k before they were split into heads, that factor is removed. The usual scale is
    None.
    """
    scaling = bound.get("scale")
    inner, factor = split_factor(q.args[0] if isinstance(q, SplitHeads) else q)
    if scaling != 1 or factor == 1:
        return q, scaling
    if factor.is_number:
        usual = abs(float(factor) * bound.numeric("query")[-1] ** 0.5 - 1) <= SCALE_TOLERANCE
    else:
        usual = writer.shapes.same(factor**-2, bound.shape("query")[-1])
    if not usual:
        return q, scaling
    return q.func(inner, *q.args[1:]) if isinstance(q, SplitHeads) else inner, None


def _apply_hints(line: dict, hints: Hints, subject: Subject, key: str) -> dict:
    """Return a line of the fused attention with the result `key`, with the hints and the claims that hold."""
    part = PARTS[line["tensor"].key.rpartition(".")[2].rstrip("0123456789")]
    hint = hints.of(line["id"], part)
    context = Context(subject, key, part, line["equation"])
    explanation = hint.reason(line.pop("why"), context)
    texts = {"why": explanation.text, "facts": explanation.facts, "refuted": explanation.refuted}
    return {**line, **texts, "title": hint.title or line["title"], "note": hint.remark(context)}


def _letter(tensor: Tensor, letter: str) -> str:
    """Return the letter of a line before the result, with the same accents and indices."""
    name = tensor.name.replace(r"\mathbf{H}", rf"\mathbf{{{letter}}}")
    return name if name != tensor.name else rf"\mathbf{{{letter}}}_{{\text{{{tensor.key.replace('_', ' ')}}}}}"


def _line(step: str, tensor: Tensor, equation: Node, why: Why) -> dict:
    title, role = ROLE_LABELS[PARTS[step]].title, words(PARTS[step].removeprefix("causal "))
    return {"id": tensor.key, "title": title, "tensor": tensor, "equation": equation, "why": why, "role": role}
