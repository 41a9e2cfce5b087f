"""Forward slices of a program: what a choice, or a number, of the code can influence.

A slice is read from the syntax tree of the functions that ran: both sides of a branch, what reads a name that is
assigned there, what comes after an early return, and the same in the caller where the choice is returned. Where an op
takes a number, or the result of an op, the slice ends: the equation of that op has it as an operand.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from tracer.capture.calls import Frame, Span, Stack, frame_of_model, span_of, stack
from tracer.capture.outer_values import StateName, is_own
from tracer.utils import files

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda

LEAVING = (ast.Return, ast.Continue, ast.Break)
"""Statements after which those that follow do not run."""
DEEPEST_CALLS = 3
"""Largest number of calls of functions that a name is followed into."""
NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
"""Statements whose bodies run elsewhere."""


@lru_cache(maxsize=256)
def _tree(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None where it can't be read."""
    try:
        return files.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


@lru_cache(maxsize=256)
def _functions(file: str) -> tuple[FunctionNode, ...]:
    """Return the functions of a file, each before those inside it; none where it can't be read."""
    tree = _tree(file)
    return tuple(node for node in ast.walk(tree) if isinstance(node, FunctionNode)) if tree is not None else ()


@lru_cache(maxsize=4096)
def function_at(file: str, line: int) -> FunctionNode | None:
    """Return the innermost function around a line; None where there is none."""
    around = [node for node in _functions(file) if line in files.lines(node)]
    return min(reversed(around), key=lambda node: len(files.lines(node)), default=None)  # the last is innermost


def functions_at(frames: Iterable[Frame]) -> list[tuple[str, FunctionNode]]:
    """Return the innermost functions around some expressions, each once, with their files."""
    found = {(file, function_at(file, span[0])): None for file, span in dict.fromkeys(frames)}
    return [(file, function) for file, function in found if function is not None]


@lru_cache(maxsize=8192)
def _names_in(function: FunctionNode) -> frozenset[str]:
    """Return the names of all variables and attributes in a function."""
    return frozenset(map(_name, ast.walk(function))) | parameters(function)


def _with_helpers(ran: Iterable[Frame]) -> list[tuple[str, FunctionNode]]:
    """Return the innermost functions around some expressions, and those of the same files that they call by name."""
    found = functions_at(ran)
    known = {id(function) for _, function in found}
    named: dict[str, list[tuple[str, FunctionNode]]] = {}
    for file in {file for file, _ in found}:
        for function in _functions(file):
            if not isinstance(function, ast.Lambda):
                named.setdefault(function.name, []).append((file, function))
    start = 0
    for _ in range(DEEPEST_CALLS):
        read = frozenset[str]().union(*(_names_in(function) for _, function in found[start:]))
        start = len(found)
        more = [entry for name in sorted(read & named.keys()) for entry in named[name] if id(entry[1]) not in known]
        known.update(id(function) for _, function in more)
        found += more
    return found


def slices(frame: Frame, ran: Collection[Frame | None], sites: Sites, depth: int = DEEPEST_CALLS) -> Iterator[Slice]:
    """Yield what depends on an expression, in its function and in those that call it."""
    part, (file, span) = forward_slice((frame,), ran, sites), frame
    function = function_at(file, span[0])
    name = getattr(function, "name", "")
    calls = [
        (caller_file, span_of_node(node))
        for caller_file, caller in (
            _with_helpers(own for own in ran if own) if part.returned and name and depth else ()
        )
        if caller is not function and name in _names_in(caller)
        for node in ast.walk(caller)
        if isinstance(node, ast.Call) and _name(node.func) == name
    ]
    yield part._replace(returned=part.returned and not calls)
    for call in dict.fromkeys(calls):
        yield from slices(call, ran, sites, depth - 1)


def reads_of(names: Collection[StateName], ran: Collection[Frame]) -> Iterator[tuple[StateName, Frame]]:
    """Yield the expressions, in functions that ran and those that they call, by which code reads what has these names.
    What only changes it, such as `seen.append(x)`, is none; `total += x` is one where an op computes it, and
    `rng.shuffle(order)` is one where `order` may be another list behind it."""
    spans = frozenset(ran)
    for file, function in _with_helpers(ran) if names else ():
        used = _names_in(function)
        own = [name for name in names if name.file in ("", file) and name.name.rpartition(".")[2] in used]
        own = [name for name in own if not name.line or name.line in files.lines(function)]
        if not own:
            continue
        attributes = {name.name: name for name in own if not name.file}
        bound = _bound(function)
        variables = {name.name: name for name in own if name.file and (bool(name.line) == (name.name in bound))}
        written = _written_first(function)
        own_spans = {span for name, span in spans if name == file}
        changed = {
            id(inner)
            for node in ast.walk(function)
            if not _filled(node, function, own_spans)
            for part in _changed(node)
            for inner in ast.walk(part)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.AugAssign) and (file, span_of_node(node)) in spans:
                known = attributes if isinstance(node.target, ast.Attribute) else variables
                if (name := known.get(_name(node.target))) is not None:
                    yield name, (file, span_of_node(node))
            if id(node) in changed or not isinstance(getattr(node, "ctx", None), ast.Load):
                continue
            if isinstance(node, ast.Attribute):
                name = attributes.get(node.attr) or variables.get(ast.unparse(node))
            else:
                name = variables.get(_name(node))
            if name is not None and span_of_node(node) < written.get(ast.unparse(node), (sys.maxsize,)):
                yield name, (file, span_of_node(node))


def _written_first(function: FunctionNode) -> dict[str, tuple[int, ...]]:
    """Return where a function has given names and attributes a value that they have in all of its runs: what reads one
    behind that reads no earlier state."""
    ends: dict[str, tuple[int, ...]] = {}
    for statement in [] if isinstance(function, ast.Lambda) else function.body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            ends.setdefault(ast.unparse(target), (statement.end_lineno or 0, statement.end_col_offset or 0))
    return ends


def _name(node: ast.AST) -> str:
    """Return the name of a variable, or of an attribute; "" for anything else."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _changed(node: ast.AST) -> list[ast.expr]:
    """Return the parts of a statement that name what it changes."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        return [node.value.func.value]
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []


KEEPING = frozenset(
    "add append appendleft clear difference_update discard extend extendleft insert intersection_update pop popitem "
    "popleft put put_nowait remove reverse rotate setdefault sort symmetric_difference_update update write "
    "writelines".split()
)
"""Methods of lists, sets, dictionaries, queues and files that change these alone, and none of their arguments."""


def _filled(node: ast.AST, function: FunctionNode, ran: Collection[Span]) -> set[str]:
    """Return the variables of a function into which a method that a statement calls may write, such as `order` in
    `rng.shuffle(order)`. What `ran` ops gave is none: a write into a tensor is an op."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return set()
    if call.func.attr in KEEPING or call.func.attr.endswith("_"):
        return set()
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    names = {argument.id for argument in arguments if isinstance(argument, ast.Name)}
    computed = {
        name
        for statement in ast.walk(function)
        if isinstance(statement, ast.Assign) and any(_holds(span_of_node(statement.value), span) for span in ran)
        for target in statement.targets
        for name in assigned(target)
    }
    given = parameters(function) if getattr(function, "name", "") == "forward" else set()
    return (names & _bound(function)) - computed - given


def _bound(function: FunctionNode) -> set[str]:
    """Return the names that are a function's own."""
    nodes = list(ast.walk(function))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    outer = {name for node in nodes if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    return (stored | parameters(function)) - outer


class Slice(NamedTuple):
    """Dependents of something: the ops inside of some expressions, and the innermost op around each of others, else
    those of its statement. `returned` tells whether what the outermost function returns depends, too."""

    inside: frozenset[Frame] = frozenset()
    around: frozenset[tuple[Frame, Span]] = frozenset()
    returned: bool = False

    def ops(self, ran: Sequence[Frame | None], after: int = -1) -> set[int]:
        """Return which ops depend, of a run whose ops have these expressions, behind one of them."""
        read = {file for file, _ in self.inside} | {file for (file, _), _ in self.around}
        known = [(op, frame) for op, frame in enumerate(ran) if op > after and frame is not None and frame[0] in read]
        ops = {op for op, (file, span) in known if any(name == file and _holds(b, span) for name, b in self.inside)}
        for (file, span), statement in self.around:
            here = [(op, own) for op, (name, own) in known if name == file]
            around = [(op, own) for op, own in here if _holds(own, span)]
            if around:
                least = max(own for _, own in around if all(_holds(wider, own) for _, wider in around))
                ops |= {op for op, own in around if own == least}
            else:
                ops |= {op for op, own in here if _holds(statement, own)}
        return ops


Sites = Mapping[Frame, tuple[str, ...]]
"""Expressions that call modules, with the parameters of these."""


def forward_slice(
    frames: Stack, ran: Collection[Frame | None], sites: Sites, choice: bool = False, numbers: bool = False
) -> Slice:
    """Return what depends on the expression that the innermost of these frames evaluates.

    `ran` are the expressions that ran ops. With `choice`, it is a condition on values: the ops inside of it are no
    users of it. With `numbers`, it is one or several numbers, and a loop over these takes as many turns for any.
    """
    functions = functions_at(frame for frame in ran if frame is not None)
    inside: set[Frame] = set()
    around: set[tuple[Frame, Span]] = set()
    passed: set[str] = set()
    returned, seen = bool(frames), set[int]()

    def follow(file: str, function: FunctionNode, start: Span | None, names: Collection[str], choice: bool) -> bool:
        seen.add(id(function))
        spans = {frame[1] for frame in ran if frame is not None and frame[0] == file}
        spans -= {span_of_node(node) for node in ast.walk(function) if isinstance(node, ast.IfExp)}  # ops that test it
        own = {span for span in spans if not (choice and start is not None and _holds(start, span))}
        calls = {span: named for (name, span), named in sites.items() if name == file}
        others = [taken for _, taken in functions if taken is not function]
        slicer = _Slicer(start, names, own, calls, others, numbers)
        slicer.follow(function)
        inside.update((file, part) for part in slicer.inside)
        around.update(((file, part), statement) for part, statement in slicer.around.items())
        passed.update(slicer.passed)
        return slicer.returned

    for number, (file, span) in enumerate(frames):
        function = function_at(file, span[0])
        if function is None or not follow(file, function, span, (), choice and not number):
            returned = False
            break
    for _ in range(DEEPEST_CALLS):
        for file, function in functions:
            if id(function) not in seen and (names := passed & parameters(function)):
                follow(file, function, None, names, False)
    return Slice(frozenset(inside), frozenset(around), returned)


class Choice(NamedTuple):
    """A branch that the code took by a value of a tensor: the op that read it, the source of the condition, what that
    was, None where it has parts that were not read, and the code's frames."""

    op: int
    text: str
    outcome: bool | None
    frames: Stack

    @classmethod
    def here(cls, op: int, outcome: bool, tested: bool) -> Choice | None:
        """Return the choice by a value that the code is reading now: one whose truth is `tested`, or a number within a
        condition; None for a number in no condition."""
        frames, frame = stack(), frame_of_model()
        if frame is None:
            return cls(op, "", outcome, frames) if tested else None
        file, span = frame.f_code.co_filename, span_of(frame)
        test = _test_at(file, span) if tested else _test_around(file, span)
        if test is None:
            return cls(op, "", outcome, frames) if tested else None
        known = _truth(test, outcome) if tested else None
        return cls(op, ast.unparse(test), known, ((file, span_of_node(test)), *frames[1:]))


MODES = frozenset(
    "training dtype device is_cuda is_floating_point is_grad_enabled is_autocast_enabled requires_grad".split()
)
"""Attributes and functions that tell in which mode, in which dtype or where code runs."""


def mode_tests(ran: Collection[Frame]) -> Iterator[tuple[str, Frame]]:
    """Yield the conditions on a mode, in functions that ran and belong to no library: the source of each, and where it
    is."""
    for file, function in functions_at(ran):
        for node in ast.walk(function) if is_own(file) else ():
            test = node.test if isinstance(node, (ast.If, ast.IfExp)) else None
            names = {part.attr for part in ast.walk(test) if isinstance(part, ast.Attribute)} if test else set()
            if test is not None and names & MODES:
                yield ast.unparse(test), (file, span_of_node(test))


class ValueRead(NamedTuple):
    """A read of a tensor's values as numbers of Python, or of NumPy: the last op before it, the producer of the tensor,
    the source of the read, and the code's frames."""

    op: int
    maker: int | str
    text: str
    frames: Stack

    @classmethod
    def here(cls, op: int, maker: int | str) -> ValueRead | None:
        """Return the read that the code is making now; None where its source can't be read."""
        frames = stack()
        node = _test_at(*frames[0]) if frames else None
        return cls(op, maker, ast.unparse(node), frames) if node is not None else None

    def users(self, ran: Collection[Frame | None], sites: Sites) -> tuple[Slice, Slice]:
        """Return what depends on the numbers: what they decide, and what they are a number of."""
        part = forward_slice(self.frames, ran, sites, choice=True, numbers=True)
        return part._replace(around=frozenset()), Slice(around=part.around)


def _truth(test: ast.AST, read: bool) -> bool | None:
    """Return the truth of a condition by that of a value in it, whichever of its parts that is; None where another part
    may decide."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand, read)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        decisive = isinstance(test.op, ast.Or)
        return decisive if {_truth(part, read) for part in test.values} == {decisive} else None
    if isinstance(test, ast.Compare) and len(test.ops) > 1:
        return None if read else False
    return read


@lru_cache(maxsize=1024)
def _test_around(file: str, span: Span) -> ast.AST | None:
    """Return the innermost condition around an expression, None if there is none."""
    function = function_at(file, span[0])
    nodes = ast.walk(function) if function is not None else ()
    tests = [node.test for node in nodes if isinstance(node, (ast.If, ast.While, ast.IfExp))]
    return max((test for test in tests if _holds(span_of_node(test), span)), key=span_of_node, default=None)


@lru_cache(maxsize=1024)
def _test_at(file: str, span: Span) -> ast.AST | None:
    """Return the condition that the statement, or the expression, at a place of a file tests; None where it can't be
    read."""
    function = function_at(file, span[0])
    nodes = (node for node in ast.walk(function) if span_of_node(node) == span) if function is not None else ()
    return next((getattr(node, "test", node) for node in nodes), None)


def span_of_node(node: ast.AST) -> Span:
    return tuple(getattr(node, name, 0) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"))  # type: ignore[return-value]


def _holds(outer: Span, inner: Span) -> bool:
    """Return whether a part of a source is inside of another."""
    return outer[:2] <= inner[:2] and inner[2:] <= outer[2:]


class _Slicer:
    """Slicer of one function, from a part of it: `inside` are statements and expressions whose ops depend, `around`
    those that an op takes a number from, each with its statement. `passed` are the parameters of other functions that
    ran which take a name of the slice."""

    def __init__(
        self,
        start: Span | None,
        names: Collection[str],
        ran: set[Span],
        sites: Mapping[Span, tuple[str, ...]],
        others: Sequence[FunctionNode] = (),
        numbers: bool = False,
    ):
        self._start, self._ran, self._sites, self._numbers = start, ran, sites, numbers
        self._others = frozenset[str]().union(*map(parameters, others))
        self._defined = by_name(others)
        self.inside: set[Span] = set()
        self.around: dict[Span, Span] = {}
        self._names: set[str] = {*names}
        self.passed: set[str] = set()
        self.returned = False

    def follow(self, function: FunctionNode) -> None:
        """Follow the statements of a function, in order."""
        self._function = function
        if isinstance(function, ast.Lambda):
            self._statement(ast.copy_location(ast.Return(function.body), function.body), False)
        else:
            self._block(function.body, False)

    def _block(self, statements: Iterable[ast.stmt], depends: bool) -> bool:
        """Follow statements; return whether those behind them depend, since these may leave early."""
        before = depends
        for statement in statements:
            depends = self._statement(statement, depends) or depends
        return depends and not before

    def _statement(self, node: ast.stmt, depends: bool) -> bool:
        if isinstance(node, NESTED):
            return False
        branches, parts = depends, [part for head in header(node) for part in self._parts(head)]
        depends = depends or bool(parts)
        if isinstance(node, ast.If):
            if all(isinstance(inner, ast.Raise) for inner in node.body) and not node.orelse:
                return False
            blocks = [self._block(block, depends) for block in (node.body, node.orelse)]
            return any(blocks) or (depends and any(isinstance(inner, LEAVING) for inner in ast.walk(node)))
        if isinstance(node, (ast.For, ast.While)):
            if depends and isinstance(node, ast.For):
                self._names |= assigned(node.target)
                depends = branches or not self._numbers or _calls_range(node.iter)
            ends = self._block(node.body, depends) and _may_end(node)
            blocks = [ends, *(self._block(block, depends or ends) for block in (node.body, node.orelse))]
            return any(blocks) and any(isinstance(inner, ast.Return) for inner in ast.walk(node))
        if isinstance(node, (ast.With, ast.Try)):
            handlers = [handler.body for handler in getattr(node, "handlers", ())]
            rest = [getattr(node, "orelse", []), getattr(node, "finalbody", [])]
            blocks = [self._block(block, depends) for block in (node.body, *handlers, *rest)]  # all are followed
            return any(blocks)
        if depends and not isinstance(node, (ast.Assert, ast.Raise)):
            self._reach(node, parts, branches)
        return False

    def _parts(self, node: ast.expr | ast.stmt) -> list[Span]:
        """Return the parts of an expression that begin the slice, or read a name of it."""
        lists = set()
        for comprehension in ast.walk(node) if self._numbers else ():
            if isinstance(comprehension, ast.comprehension) and self._begins(comprehension.iter):
                self._names |= assigned(comprehension.target)
                lists.add(span_of_node(comprehension.iter))
        parts = [self._start] if self._start is not None and _holds(span_of_node(node), self._start) else []
        parts += [span_of_node(inner) for inner, name in _reads(node) if name in self._names]
        return [part for part in parts if part not in lists]

    def _begins(self, node: ast.expr) -> bool:
        """Return whether an expression holds the beginning of the slice, or a name of it."""
        begins = self._start is not None and _holds(span_of_node(node), self._start)
        return begins or any(name in self._names for _, name in _reads(node))

    def _parameter(self, node: ast.stmt, part: Span) -> str:
        """Return the parameter of another function that ran which takes a part of a statement; "" if there is none."""
        for call in ast.walk(node):
            if not isinstance(call, ast.Call):
                continue
            for keyword in call.keywords:
                if keyword.arg in self._others and span_of_node(keyword.value) == part:
                    return keyword.arg or ""
            named = self._sites.get(span_of_node(call), ()) or positional(call, self._defined)
            for place, value in enumerate(call.args):
                if span_of_node(value) == part and place < len(named):
                    return named[place]
                if span_of_node(value) == part and isinstance(value, ast.Name) and value.id in self._others:
                    return value.id
        return ""

    def _reach(self, node: ast.stmt, parts: list[Span], branches: bool) -> None:
        """Add a statement, which is on one side of a branch or has parts that depend."""
        if branches:
            self.inside.add(span_of_node(node))
        self.around |= dict.fromkeys(parts, span_of_node(node))
        for part in parts:
            self.inside.update(_alternatives(node, part, self._numbers))
        handed = {part: name for part in parts if (name := self._parameter(node, part))}
        self.passed.update(handed.values())
        absorbed = not branches and all(part in handed or any(_holds(own, part) for own in self._ran) for part in parts)
        if isinstance(node, ast.Return):
            self.returned = self.returned or not absorbed
        elif not absorbed:
            for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
                self._names |= assigned(target) if target is not None else set()
            receivers = [span_of_node(changed) for changed in _changed(node)]
            if any(_holds(receiver, part) for receiver in receivers for part in parts):
                self._names |= _filled(node, self._function, self._ran)


def _may_end(loop: ast.For | ast.While) -> bool:
    """Return whether a loop has a statement that ends it: what runs in later turns depends on it, too."""
    waiting: list[ast.AST] = [*loop.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Break, ast.Return)):
            return True
        inner = ast.iter_child_nodes(node)
        if isinstance(node, (ast.For, ast.While)):
            inner = (each for each in ast.walk(node) if isinstance(each, ast.Return))
        waiting += () if isinstance(node, NESTED) else inner
    return False


def by_name(functions: Iterable[FunctionNode]) -> dict[str, FunctionNode]:
    """Return functions by their names, without those that have none."""
    return {function.name: function for function in functions if not isinstance(function, ast.Lambda)}


def positional(call: ast.Call, defined: Mapping[str, FunctionNode]) -> tuple[str, ...]:
    """Return the parameters of a function that is called by its name."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    function = defined.get(name)
    own = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)] if function else []
    return tuple(own[1:] if own[:1] == ["self"] else own)


def parameters(function: FunctionNode) -> frozenset[str]:
    """Return the names of a function's parameters."""
    own = function.args
    return frozenset(argument.arg for argument in (*own.posonlyargs, *own.args, *own.kwonlyargs)) - {"self"}


def _alternatives(node: ast.AST, part: Span, numbers: bool) -> Iterator[Span]:
    """Yield the expressions of which a part chooses one, or that run as often as it says; `numbers` say how often in a
    range alone."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.IfExp) and _holds(span_of_node(inner.test), part):
            yield from (span_of_node(inner.body), span_of_node(inner.orelse))
        if isinstance(inner, (ast.ListComp, ast.GeneratorExp)):
            sources = [each for generator in inner.generators for each in generator.ifs]
            sources += [own.iter for own in inner.generators if not numbers or _calls_range(own.iter)]
            if any(_holds(span_of_node(each), part) for each in sources):
                yield span_of_node(inner.elt)


def _calls_range(node: ast.expr) -> bool:
    return any(isinstance(inner, ast.Call) and _name(inner.func) == "range" for inner in ast.walk(node))


def header(node: ast.stmt) -> list[ast.expr | ast.stmt]:
    """Return the parts of a statement that run before the statements inside it, if there are any."""
    if isinstance(node, (ast.If, ast.While)):
        return [node.test]
    if isinstance(node, ast.For):
        return [node.iter]
    if isinstance(node, ast.With):
        return [item.context_expr for item in node.items]
    return [] if isinstance(node, ast.Try) else [node]


def _reads(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the parts of a node that read names, those of attributes with what they belong to."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
            yield inner, inner.id
        elif isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name):
            yield inner, f"{inner.value.id}.{inner.attr}"
    if isinstance(node, ast.AugAssign):
        yield from ((node.target, name) for name in assigned(node.target))


def assigned(target: ast.expr) -> set[str]:
    """Return the names that an assignment gives a value, or a part of one."""
    if isinstance(target, ast.Attribute):
        return {f"{target.value.id}.{target.attr}"} if isinstance(target.value, ast.Name) else set()
    if isinstance(target, (ast.Subscript, ast.Starred)):
        return assigned(target.value)
    if isinstance(target, (ast.Tuple, ast.List)):
        return set().union(*map(assigned, target.elts))
    return {target.id} if isinstance(target, ast.Name) else set()
