"""Location of an error in the user's code: the frame, the line, the expression, and the values that it reads."""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar

import torch
from torch import nn

from tracer.capture.calls import source
from tracer.record import Source
from tracer.utils import files
from tracer.utils.torch_internals import MODULE_CALL

_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_TRACER = str(Path(__file__).resolve().parents[2]) + os.sep
_MODELS = _TRACER + "models" + os.sep
Node = TypeVar("Node", bound=ast.AST)
Statement = TypeVar("Statement", bound=ast.stmt)
UNKNOWN_SITE = object()
"""In place of the value of an expression that could only be had by running code again."""
PURE = frozenset(
    "size shape dim view reshape transpose permute unsqueeze squeeze flatten float long int to expand contiguous"
    " numel len type double half bool unbind chunk split softmax relu tanh sigmoid exp cos sin sqrt mean sum arange"
    " linspace zeros ones".split()
)
"""Functions and methods that change nothing, so that an expression may be evaluated once more."""


def is_users(code: CodeType) -> bool:
    """Return whether code is the user's: neither PyTorch's nor the tracer's own."""
    file = code.co_filename
    if file.startswith(_MODELS):
        return True
    return not file.startswith((_TORCH, _TRACER, "<frozen")) and "importlib" not in file


def callee_name(call: ast.Call) -> str:
    """Return the name of what a call calls, without its module."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def items_of(values: Sequence[ast.expr]) -> list[ast.expr]:
    """Return the arguments of a call, those in the list or the tuple that is the only one."""
    alone = values[0] if len(values) == 1 else None
    return list(alone.elts if isinstance(alone, (ast.List, ast.Tuple)) else values)


def _names(nodes: Iterable[ast.expr]) -> list[str]:
    return [node.id for node in nodes if isinstance(node, ast.Name)]


def source_text(lines: list[str], node: ast.AST) -> str:
    """Return the source of a node, from the lines of its file; "" for one without a place."""
    if not isinstance(node, (ast.expr, ast.stmt)):
        return ""
    first, last = node.lineno, node.end_lineno or node.lineno
    parts = [line.encode() for line in lines[first - 1 : last]]
    parts[-1] = parts[-1][: node.end_col_offset]
    parts[0] = parts[0][node.col_offset :]
    return b"".join(parts).decode()


TREES = 8
"""Files whose syntax trees are kept: each trial of a repair reads the same ones."""


def tree_of(lines: list[str]) -> ast.Module | None:
    """Return the syntax tree of the lines of a file, None where they are no Python. It is shared: nobody changes it."""
    return _tree("".join(lines))


@lru_cache(TREES)
def _tree(text: str) -> ast.Module | None:
    try:
        return files.parse(text)
    except (SyntaxError, ValueError):
        return None


@lru_cache(TREES)
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return the nodes of a syntax tree in the order of `ast.walk`."""
    return tuple(ast.walk(tree))


@lru_cache(TREES)
def _functions(tree: ast.AST) -> tuple[ast.FunctionDef, ...]:
    return tuple(node for node in nodes_of(tree) if isinstance(node, ast.FunctionDef))


def innermost_function(tree: ast.AST, line: int) -> ast.FunctionDef | None:
    """Return the innermost function of a syntax tree around a line; None for none."""
    around = [node for node in _functions(tree) if line in files.lines(node)]
    return max(around, key=lambda node: node.lineno, default=None)


@dataclass(frozen=True, eq=False)
class Expression:
    """An operand of the failed expression: its node, its text, and its value, `UNKNOWN` where that is not known."""

    node: ast.expr
    text: str
    value: Any = UNKNOWN_SITE

    @property
    def atom(self) -> str:
        """Text of the expression, in parentheses where it can't be followed directly."""
        whole = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.List, ast.Tuple)
        return self.text if isinstance(self.node, whole) else f"({self.text})"


@dataclass(frozen=True, eq=False)
class FailureSite:
    """Location where an error left the user's code. `modules` are the modules that were running, the innermost last;
    those after `own` were called by the line. `frames` are those of the user's code, and `caller` is the location of
    the last but one, without its modules."""

    frame: FrameType
    line: int
    columns: tuple[int, int, int] | None
    modules: tuple[nn.Module, ...]
    own: int
    frames: tuple[FrameType, ...]
    caller: FailureSite | None = None
    text: tuple[str, ...] | None = None

    @property
    def code(self) -> CodeType:
        return self.frame.f_code

    @property
    def file(self) -> str:
        return self.code.co_filename

    @cached_property
    def lines(self) -> list[str]:
        """Lines of the file, or those of `text` where an edited one ran, [] where it can't be read."""
        if self.text is not None:
            return list(self.text)
        linecache.checkcache(self.file)
        return linecache.getlines(self.file, self.frame.f_globals)

    @cached_property
    def tree(self) -> ast.Module | None:
        """Syntax tree of the file."""
        return tree_of(self.lines) if self.lines else None

    @property
    def source(self) -> Source:
        return source(self.file, self.line)

    def nodes(self, *kinds: type[Node]) -> Iterator[Node]:
        """Yield the nodes of these kinds in the file, none where it can't be read."""
        for node in nodes_of(self.tree) if self.tree is not None else ():
            if isinstance(node, kinds):
                yield node

    def nodes_of_line(self, *kinds: type[Node]) -> Iterator[Node]:
        """Yield the nodes of these kinds that begin in the failed line."""
        return (node for node in self._of_line if isinstance(node, kinds))

    @cached_property
    def _of_line(self) -> list[ast.AST]:
        nodes = nodes_of(self.tree) if self.tree is not None else ()
        return [node for node in nodes if getattr(node, "lineno", 0) == self.line]

    def nodes_around(self, kind: type[Statement]) -> Iterator[Statement]:
        """Yield the nodes of a kind that span the failed line."""
        return (node for node in self.nodes(kind) if self.line in files.lines(node))

    @cached_property
    def function(self) -> ast.FunctionDef | None:
        """Innermost function around the failed line."""
        return innermost_function(self.tree, self.line) if self.tree is not None else None

    def last_assignment(self, name: str) -> ast.Assign | None:
        """Return the last line of the function before the failed one that assigns a name, None for none."""
        before = range(self.code.co_firstlineno, self.line)
        lines = [line for line in self.nodes(ast.Assign) if line.lineno in before and name in _names(line.targets)]
        return max(lines, key=lambda line: line.lineno, default=None)

    @cached_property
    def node(self) -> ast.AST | None:
        """Innermost expression or statement that failed."""
        if self.columns is None:
            return None
        end, first, last = self.columns
        best: ast.expr | ast.stmt | None = None
        kinds: tuple[type[ast.expr | ast.stmt], ...] = ast.expr, ast.stmt
        for node in self.nodes_of_line(*kinds):
            if (node.end_lineno, node.col_offset, node.end_col_offset) == (end, first, last):
                best = node if best is None or isinstance(best, ast.stmt) else best
        return best

    @cached_property
    def span(self) -> tuple[int, int] | None:
        """Columns of the failed expression in its stripped line."""
        if self.columns is None or not self.lines:
            return None
        end, first, last = self.columns
        line = self.lines[self.line - 1]
        data, indent = line.encode(), len(line) - len(line.lstrip())
        stop = len(data[:last].decode()) if end == self.line else len(line.rstrip())
        return max(0, len(data[:first].decode()) - indent), stop - indent

    def is_outside(self, error: BaseException) -> bool:
        """Return whether the error was raised by a library that the line calls, and not by the line itself."""
        return any(frame is not self.frame for frame, _ in [*walk_tb(error.__traceback__)][-1:])

    def text_of(self, node: ast.AST) -> str:
        """Return the source of a node."""
        return source_text(self.lines, node)

    def expression(self, node: ast.expr) -> Expression:
        """Return a node with its text and value."""
        return Expression(node, self.text_of(node), self.value(node))

    def value(self, node: ast.expr) -> Any:
        """Return the value that an expression had, `UNKNOWN` where only running code again would give it."""
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                if callee_name(inner) not in PURE:
                    return UNKNOWN_SITE
            elif isinstance(inner, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Lambda, ast.comprehension)):
                return UNKNOWN_SITE
        try:
            with torch.no_grad():
                code = compile(f"({self.text_of(node)})", "<operand>", "eval")
                return eval(code, self.frame.f_globals, dict(self.frame.f_locals))  # the user's own expression
        except Exception:
            return UNKNOWN_SITE

    @cached_property
    def operands(self) -> tuple[Expression, ...]:
        """Expressions that the failed one takes, in order."""
        return tuple(map(self.expression, _operand_nodes(self.node)))

    def operand_of(self, *kinds: type) -> Expression | None:
        """Return the first operand whose value is of one of these kinds, None for none."""
        return next((operand for operand in self.operands if isinstance(operand.value, kinds)), None)

    def name_of(self, value: Any) -> str:
        """Return the name of a value in the code: the text of an operand, or the name of a variable; "" for neither."""
        for operand in self.operands:
            if operand.value is value:
                return operand.text
        return next((name for name, local in self.frame.f_locals.items() if local is value), "")


def _operand_nodes(node: ast.AST | None) -> Iterator[ast.expr]:
    if isinstance(node, ast.AugAssign):
        yield from (node.target, node.value)
    elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr)) and node.value is not None:
        yield from _operand_nodes(node.value)
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)
    elif isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.Subscript):
        yield from (node.value, node.slice)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield node.func.value
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            if isinstance(argument, (ast.List, ast.Tuple)):
                yield from argument.elts
            elif isinstance(argument, ast.Starred):
                yield argument.value
            else:
                yield argument
    elif isinstance(node, ast.Attribute):
        yield node.value


def locate_failure(error: BaseException) -> FailureSite | None:
    """Return where an error left the user's code; None for one that was raised outside of it."""
    traces: list[TracebackType] = []
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        traces.append(trace)
        trace = trace.tb_next
    users = [index for index, trace in enumerate(traces) if is_users(trace.tb_frame.f_code)]
    if not users:
        return None
    frames = [trace.tb_frame for trace in traces]
    before, after = _modules_called(frames[: users[-1]]), _modules_called(frames[users[-1] + 1 :])
    chain, site = tuple(frames[index] for index in users), None
    for number, index in list(enumerate(users, 1))[-2:]:  # the last one, and the one that called it
        at, innermost = traces[index], index == users[-1]
        modules, own = ((*before, *after), len(before)) if innermost else ((), 0)
        site = FailureSite(frames[index], at.tb_lineno, _columns(at), modules, own, chain[:number], site)
    return site


def modules_of(error: BaseException) -> tuple[nn.Module, ...]:
    """Return the modules that were running when an error was raised, the innermost last."""
    return _modules_called(frame for frame, _ in walk_tb(error.__traceback__))


def line_of(error: BaseException) -> tuple[str, int] | None:
    """Return the user's line that an error came from; None where only modules of PyTorch ran."""
    site = locate_failure(error)
    return (site.file, site.line) if site else None


def root_call(error: BaseException) -> tuple[nn.Module, tuple, dict] | None:
    """Return the outermost call of a module on the path of an error, with its arguments; None if there is none."""
    for frame, _ in walk_tb(error.__traceback__):
        for module in _modules_called([frame]):
            return module, tuple(frame.f_locals.get("args", ())), dict(frame.f_locals.get("kwargs", {}))
    return None


def arguments_of(error: BaseException, module: nn.Module) -> tuple[tuple, dict]:
    """Return the arguments of the call of a module on the path of an error, none where it was not called."""
    for frame, _ in walk_tb(error.__traceback__):
        if module in _modules_called([frame]):
            return tuple(frame.f_locals.get("args", ())), dict(frame.f_locals.get("kwargs", {}))
    return (), {}


def _modules_called(frames: Iterable[FrameType]) -> tuple[nn.Module, ...]:
    """Return the modules that these frames call, those of PyTorch that do so."""
    calls = (f for f in frames if f.f_code.co_name == MODULE_CALL and f.f_code.co_filename.startswith(_TORCH))
    return tuple(module for call in calls if (module := call.f_locals.get("self")) is not None)


def _columns(trace: TracebackType) -> tuple[int, int, int] | None:
    """Return the last line, the first and the last column of what failed."""
    positions = list(trace.tb_frame.f_code.co_positions())
    index = trace.tb_lasti // 2
    if index >= len(positions):
        return None
    first, end, column, last = positions[index]
    if first != trace.tb_lineno or end is None or column is None or last is None:
        return None
    return end, column, last
