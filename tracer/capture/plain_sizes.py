"""Decisions by sizes that became plain numbers: Python hands `range`, `len` or `math.log` a number that logs nothing.

They are read from the syntax tree of the functions that ran, with the sizes that were read at each line.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from tracer.capture.calls import Span
from tracer.capture.program_slices import FunctionNode, assigned, header, positional, span_of_node

NUMBER, SIZE, COUNT, PLAIN = range(4)
"""Kinds of expressions: no size; a size that logs its comparisons; a plain number that is a size, or counts up to one;
a plain number that follows from sizes in another way."""
READS = frozenset(("shape", "size", "numel", "nelement", "nbytes"))
"""Names by which code reads sizes of a tensor."""
LOGGING = frozenset(("min", "max", "abs", "sum", "round", "divmod", "ceil", "floor", "trunc", "bisect", "bit_length"))
"""Functions that keep the log of the numbers that they are given."""
CONVERSIONS = frozenset(("int", "float", "len", "range", "enumerate", "list", "tuple", "reversed"))
"""Functions that return a size as a plain number, or count up to it."""
MODULES = frozenset(("math", "cmath", "np", "numpy"))
"""Modules whose functions return plain numbers."""
QUOTIENTS = ast.FloorDiv, ast.Mod


class Value(NamedTuple):
    """Facts on an expression: its kind, the formulas of the sizes that it follows from, and whether it counts
    the turns of a loop."""

    kind: int = NUMBER
    formulas: frozenset[str] = frozenset()
    in_loop: bool = False

    def join(self, *others: Value) -> Value:
        """Return what is known of a result of several operands."""
        every = (self, *others)
        formulas = frozenset[str]().union(*(value.formulas for value in every))
        return Value(max(value.kind for value in every), formulas, any(value.in_loop for value in every))


class Decision(NamedTuple):
    """A decision of the code by a plain number: its expression, the formulas of the sizes that this follows from, and
    the numbers that it is compared with if it is a size or counts up to one, else None. `in_loop` tells a count."""

    span: Span
    formulas: frozenset[str]
    numbers: frozenset[int] | None
    in_loop: bool = False


SizeReads = Callable[[int], list[tuple[str, ...]]]
"""Sizes that were read at a line, those of each tensor as formulas, "" for one that does not vary."""


class Callees(NamedTuple):
    """Parameters of what a function calls: of modules by the expressions of their calls, and of functions by name."""

    modules: Mapping[Span, tuple[str, ...]]
    functions: Mapping[str, FunctionNode]


def decisions(
    function: FunctionNode, reads: SizeReads, handed: Mapping[str, Value], callees: Callees
) -> tuple[list[Decision], dict[str, Value]]:
    """Return the decisions of a function by plain numbers that follow from sizes, and those that it hands on, by the
    parameters that take them. The numbers that it is `handed` are by its own parameters."""
    reader = _Reader(reads, handed, callees)
    if isinstance(function, ast.Lambda):
        reader.value(function.body)
    else:
        reader.block(function.body)
    return [*reader.decisions], reader.passed


class _Reader:
    """Reader of one function, in the order of its lines."""

    def __init__(self, reads: SizeReads, handed: Mapping[str, Value], callees: Callees):
        self._reads, self._callees = reads, callees
        self._names: dict[str, Value] = {**handed}
        self.passed: dict[str, Value] = {}
        self.decisions: dict[Decision, None] = {}

    def block(self, statements: Iterable[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assert, ast.Raise)):
                continue
            for part in header(node):
                self._header(node, part)
            for name in ("body", "orelse", "finalbody"):
                self.block(getattr(node, name, ()))
            for handler in getattr(node, "handlers", ()):
                self.block(handler.body)

    def _header(self, node: ast.stmt, part: ast.expr | ast.stmt) -> None:
        if isinstance(node, ast.For):
            self._assign(self._counter(node), self.value(node.iter)._replace(in_loop=True))
        elif isinstance(part, ast.expr):
            self.value(part)
        else:
            value = getattr(node, "value", None)
            known = self.value(value) if value is not None else Value()
            for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.expr):
                    count = len(target.elts)
                    for item, own in zip(target.elts, self._items(value, count) or [known] * count, strict=True):
                        self._assign(item, own)
                elif target is not None:
                    before = self._names.get(target.id, Value()) if _is_update(node, target) else Value()
                    self._assign(target, known.join(before))

    def _counter(self, node: ast.For) -> ast.expr:
        counts = isinstance(node.iter, ast.Call) and getattr(node.iter.func, "id", "") == "enumerate"
        return node.target.elts[0] if counts and isinstance(node.target, ast.Tuple) else node.target

    def _assign(self, target: ast.expr, value: Value) -> None:
        self._names |= dict.fromkeys(assigned(target), value)

    def _items(self, node: ast.expr, count: int) -> list[Value]:
        """Return the values of a shape that is unpacked."""
        shapes = [shape for shape in self._reads(node.lineno) if len(shape) == count]
        if not _reads_shape(node) or len(shapes) != 1:
            return []
        return [_size(formula) for formula in shapes[0]]

    def value(self, node: ast.AST | None) -> Value:
        """Return what is known of an expression, and note the decisions in it."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, Value())
        if isinstance(node, ast.Subscript):
            return self._subscript(node)
        if _reads_shape(node) and isinstance(node, ast.expr):
            index = node.args[0] if isinstance(node, ast.Call) and node.args else None
            return self._read(node.lineno, index)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp):
            left, right = self.value(node.left), self.value(node.right)
            if isinstance(node.op, QUOTIENTS):
                self._decide(node, [left, right], [node.left, node.right])
            both = left.join(right)
            keeps = isinstance(node.op, (ast.Add, ast.Sub)) or both.kind < COUNT
            return both if keeps else both._replace(kind=PLAIN)
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            values = [self.value(operand) for operand in operands]
            self._decide(node, values, operands)
            return Value()
        if isinstance(node, (ast.Lambda, ast.Constant)) or node is None:
            return Value()
        if isinstance(node, ast.IfExp):
            self.value(node.test)
            return self.value(node.body).join(self.value(node.orelse))
        if isinstance(node, ast.comprehension):
            self._assign(node.target, self.value(node.iter)._replace(in_loop=True))
            return Value().join(*map(self.value, node.ifs))
        inner = sorted(ast.iter_child_nodes(node), key=lambda child: not isinstance(child, ast.comprehension))
        return Value().join(*map(self.value, inner))

    def _read(self, line: int, index: ast.expr | None) -> Value:
        """Return the value of a shape that is read at a line, or of one of its sizes."""
        shapes = self._reads(line)
        axis = None
        with suppress(ValueError, TypeError):
            axis = ast.literal_eval(index) if index is not None else None
        if isinstance(axis, int):
            return Value().join(*(_size(shape[axis]) for shape in shapes if -len(shape) <= axis < len(shape)))
        return Value().join(*(_size(formula) for shape in shapes for formula in shape))

    def _subscript(self, node: ast.Subscript) -> Value:
        index = self.value(node.slice)
        if _reads_shape(node.value):
            return self._read(node.lineno, node.slice)
        if isinstance(node.value, (ast.Dict, ast.Tuple, ast.List)) and index.kind:
            self._decide(node, [index._replace(kind=PLAIN)], [node.slice])
        value = self.value(node.value)
        return value if value.kind >= COUNT else Value()

    def _call(self, node: ast.Call) -> Value:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        module = getattr(function.value, "id", "") if isinstance(function, ast.Attribute) else ""
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        values = [self.value(argument) for argument in arguments]
        known = Value().join(*values)
        if isinstance(function, ast.Name) and name in CONVERSIONS:
            if not known.kind and name in ("len", "enumerate", "list", "tuple"):  # of a tensor, or of its rows
                known = self._read(node.lineno, None) if not _is_state(arguments[0] if arguments else None) else known
            if name == "range" and len(node.args) == 3:
                self._decide(node, [known._replace(kind=min(known.kind and COUNT, COUNT)), Value()], node.args[1:])
            direct = known.kind != SIZE or name in ("len", "range") or _is_direct(arguments[0])
            return known._replace(kind=(max(known.kind, COUNT) if direct else PLAIN) if known.kind else NUMBER)
        if not module and name in ("min", "max"):
            self._decide(node, values, arguments)
        if name in LOGGING and (not module or module in MODULES):
            return known
        if module in MODULES or (isinstance(function, ast.Name) and hasattr(builtins, name)):
            return known._replace(kind=PLAIN if known.kind else NUMBER)
        if isinstance(function, ast.Attribute):
            owner = self.value(function.value)
            if (name == "get" and known.kind) or owner.kind >= COUNT:
                self._decide(node, [known.join(owner)._replace(kind=PLAIN)], arguments)
                return known.join(owner)._replace(kind=PLAIN)
        if known.kind >= COUNT:
            self._hand_on(node, values)
        return Value()

    def _hand_on(self, node: ast.Call, values: list[Value]) -> None:
        """Note the plain numbers that a call hands to the parameters of a module, or of a function."""
        named = self._callees.modules.get(span_of_node(node), ()) or positional(node, self._callees.functions)
        taken = [*named[: len(node.args)], *[""] * (len(node.args) - len(named))]
        taken += [keyword.arg or "" for keyword in node.keywords]
        for name, value in zip(taken, values, strict=True):
            if name and value.kind >= COUNT:
                self.passed[name] = value.join(self.passed.get(name, Value()))

    def _decide(self, node: ast.AST, values: list[Value], operands: list[ast.expr]) -> None:
        """Note a decision by plain numbers; one of a count by another size shows at any sizes."""
        known = Value().join(*values)
        if known.kind < COUNT or sum(value.kind > NUMBER for value in values) > 1:
            return
        numbers = None
        constants = [operand.value for operand in operands if isinstance(operand, ast.Constant)]
        if known.kind == COUNT and constants:
            numbers = frozenset(int(n) for n in constants if isinstance(n, (int, float)))
        self.decisions[Decision(span_of_node(node), known.formulas, numbers, known.in_loop)] = None  # type: ignore[attr-defined]


def _size(formula: str) -> Value:
    return Value(SIZE, frozenset([formula])) if formula else Value()


def _reads_shape(node: ast.AST | None) -> bool:
    """Return whether an expression is the shape of a tensor, or one size of it."""
    if isinstance(node, ast.Call):
        node = node.func
    return isinstance(node, ast.Attribute) and node.attr in READS


def _is_direct(node: ast.expr) -> bool:
    """Return whether an expression is a name, or a size that is read."""
    return isinstance(node, ast.Name) or _reads_shape(node.value if isinstance(node, ast.Subscript) else node)


def _is_state(node: ast.expr | None) -> bool:
    """Return whether an expression is an attribute, such as `self.layers`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)


def _is_update(node: ast.stmt, target: ast.expr) -> bool:
    return isinstance(node, ast.AugAssign) and isinstance(target, ast.Name)
