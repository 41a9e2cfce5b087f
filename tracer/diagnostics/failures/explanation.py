"""Record of why a forward failed, as plain data that prints itself."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import TYPE_CHECKING, Any

from torch import nn

from tracer.diagnostics.failures.failure_site import callee_name, is_users, items_of, tree_of
from tracer.record import Source
from tracer.symbols import notation
from tracer.utils.files import Edit

if TYPE_CHECKING:
    from tracer.record import Step, Trace


# Line of a constructor that built a module, from the source of the classes around it.


@dataclass(frozen=True)
class Construction:
    """Call in the source that built a module: its file, its node, the file's lines, and the function around it."""

    file: str
    lines: list[str]
    call: ast.Call
    function: ast.FunctionDef

    def argument(self, kind: type, name: str) -> ast.expr | None:
        """Return the expression that the call has for a parameter, by position or by name."""
        for keyword in self.call.keywords:
            if keyword.arg == name:
                return keyword.value
        names = parameters_of(kind)
        index = names.index(name) if name in names else len(self.call.args)
        if index < len(self.call.args) and not isinstance(self.call.args[index], ast.Starred):
            return self.call.args[index]
        return None


def parameters_of(kind: type) -> list[str]:
    """Return the names of what a class of modules is built with; recurrent layers only say `*args` themselves."""
    if not issubclass(kind, nn.RNNBase):
        return list(inspect.signature(kind).parameters)
    names = list(inspect.signature(nn.RNNBase).parameters)[1:]
    return names if issubclass(kind, nn.LSTM) else [name for name in names if name != "proj_size"]


def construction_of(root: nn.Module, path: str) -> Construction | None:
    """Return the call that built the module at a path, from the source of the classes around it."""
    parts = path.split(".")
    for cut in range(len(parts) - 1, -1, -1):
        holder = root.get_submodule(".".join(parts[:cut]))
        kind = type(root.get_submodule(path))
        for file, lines, function in constructors_of(holder):
            for target, value in assignments(function):
                if _is_attribute(target, parts[cut]) and (call := _call_at(value, parts[cut + 1 :], kind)) is not None:
                    return Construction(file, lines, call, function)
    return None


def assignments(function: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the assignments of a function, one target and its value at a time: two for `self.a, self.b = X(), Y()`."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value


def constructors_of(module: nn.Module) -> Iterator[tuple[str, list[str], ast.FunctionDef]]:
    """Yield the `__init__` of each class of a module that is the user's: its file, the lines of that, and its node."""
    codes = (init.__code__ for kind in type(module).__mro__ if inspect.isfunction(init := vars(kind).get("__init__")))
    for code in filter(is_users, codes):
        lines = linecache.getlines(code.co_filename)
        tree = tree_of(lines)
        for node in ast.walk(tree) if tree is not None else ():
            if not isinstance(node, ast.FunctionDef) or node.name != "__init__":
                continue
            if code.co_firstlineno in (node.lineno, *(decorator.lineno for decorator in node.decorator_list)):
                yield code.co_filename, lines, node
                break


def _is_attribute(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == name and isinstance(target.value, ast.Name)


def _call_at(value: ast.expr, rest: list[str], kind: type) -> ast.Call | None:
    """Return the call that builds a module inside an expression: the argument of `Sequential` at its number, or the
    only call of that class."""
    if rest and rest[0].isdigit() and isinstance(value, ast.Call):
        items = items_of(value.args)
        if int(rest[0]) < len(items) and not any(
            isinstance(item, (ast.Starred, ast.ListComp, ast.GeneratorExp)) for item in items
        ):
            return _call_at(items[int(rest[0])], rest[1:], kind)
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call) and callee_name(node) == kind.__name__]
    return calls[0] if len(calls) == 1 else None


MARK = "▸{}◂"
"""How a clashing size is marked in plain text."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that the failed call took.

    `name` is how the code calls it. `clash` are the axes that do not fit, counted from 0. `symbolic` is its shape in
    symbols, None where none was solved; `maker` says in words where it comes from, and `source` is the line that
    computed it.
    """

    name: str
    shape: tuple[int, ...]
    symbolic: tuple[str, ...] | None
    dtype: str
    device: str
    clash: tuple[int, ...] = ()
    maker: str = ""
    source: Source | None = None

    def numbers(self, mark: str = MARK) -> str:
        """Return the shape in numbers, `[2, 5, ▸24◂]`."""
        return self._shape(tuple(map(str, self.shape)), mark)

    def symbols(self, mark: str = MARK) -> str:
        """Return the shape in symbols, `[B, T, ▸3·D◂]`; "" where there are none."""
        if self.symbolic is None or tuple(map(str, self.shape)) == self.symbolic:
            return ""
        return self._shape(tuple(map(notation.text, self.symbolic)), mark)

    def _shape(self, sizes: tuple[str, ...], mark: str) -> str:
        return (
            "[" + ", ".join(mark.format(size) if axis in self.clash else size for axis, size in enumerate(sizes)) + "]"
        )


RUNS_TO_THE_END = "the forward pass runs to the end"
"""Outcome of the trial of most repairs."""
MAY_DIFFER = "It may compute something else than was meant."
"""Caution beside each repair: its trial shows that it runs, not that it is right."""


@dataclass(frozen=True, slots=True)
class Fix:
    """A repair: in words, as edits of the source, and the sizes at which the repaired forward ran to its end.

    A repair of a dtype or a device may have no trial: `sizes` is then empty. `doubts` are reasons, each a sentence, why
    it is probably not what was meant: a finding of the repaired run, or sizes at which it fails. `outcome` is what its
    trial showed.
    """

    message: str
    edits: tuple[Edit, ...] = ()
    sizes: tuple[dict[str, int], ...] = ()
    doubts: tuple[str, ...] = ()
    outcome: str = RUNS_TO_THE_END

    @property
    def caution(self) -> str:
        """Caution that its trial does not show that it is right, and its doubts."""
        return " ".join((MAY_DIFFER, *self.doubts))

    def diff(self) -> str:
        """Return the changes of the lines."""
        return "\n".join(edit.diff() for edit in self.edits)


@dataclass(frozen=True, repr=False)
class Explanation:
    """Explanation of why a forward failed.

    Attributes:
        kind: What failed, in a word: "product", "convolution", "attribute".
        message: The reason, in one or two sentences.
        error: The error as Python prints it.
        module: The path of the module that was running, "" for the outermost.
        source: The line of code that failed, None where it is not known.
        span: The first and the last column of the failed expression in that line, counted from 0.
        steps: The last lines of the textbook that ran, in order; `step` is the last of them.
        operands: The tensors that the failed call took.
        fixes: Repairs with which the forward runs to its end: those without doubts, of which those that change least
            come first, else those with doubts.
        attempts: The number of repairs that were tried.
        messages: The error at other sizes, by those sizes: "" where the forward runs.
        notes: What else a reader should know.
        trace: The run so far, None for an error before the forward began.
    """

    kind: str
    message: str
    error: str
    module: str = ""
    source: Source | None = None
    span: tuple[int, int] | None = None
    steps: tuple[Step, ...] = ()
    operands: tuple[Operand, ...] = ()
    fixes: tuple[Fix, ...] = ()
    attempts: int = 0
    messages: tuple[tuple[dict[str, int], str], ...] = ()
    notes: tuple[str, ...] = ()
    trace: Trace | None = field(default=None, compare=False)

    @property
    def step(self) -> Step | None:
        """Last line of the textbook that ran."""
        return self.steps[-1] if self.steps else None

    def text(self) -> str:
        """Return the explanation as plain text of some lines."""
        return "\n".join(_lines(self))

    __repr__ = __str__ = text

    def _repr_html_(self) -> str:
        return _html(self)

    def plain(self) -> dict[str, Any]:
        """Return the explanation as plain data for JSON, without the run; the last steps by id, shape and line."""
        facts = asdict(replace(self, trace=None, steps=()))
        steps = [
            {
                "id": step.id,
                "shape": notation.shape_text(step.symbolic) if step.symbolic else str(list(step.shape)),
                "source": asdict(step.source) if step.source else None,
            }
            for step in self.steps
        ]
        fixes = [{**plain, "caution": fix.caution} for plain, fix in zip(facts["fixes"], self.fixes, strict=True)]
        return {**facts, "steps": steps, "fixes": fixes}


def sizes_text(sizes: dict[str, int]) -> str:
    """Return sizes as `B=2, T=5`."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items()) or "the sizes of this run"


def trial_text(fix: Fix) -> str:
    """Return in words at which sizes a repair ran."""
    if not fix.sizes:
        return "not tried"
    return f"{fix.outcome} at " + " and at ".join(map(sizes_text, fix.sizes))


def place_text(explanation: Explanation) -> str:
    """Return where the call failed: the file, the line and the module."""
    source = explanation.source
    where = f"{source.file}:{source.line}" if source else ""
    inside = f"in {explanation.module}" if explanation.module else ""
    return ", ".join(filter(None, [where, inside]))


def attempts_text(explanation: Explanation) -> str:
    """Return in words how many repairs were tried."""
    count, kept = explanation.attempts, len(explanation.fixes)
    if not count:
        return ""
    tried = f"{count} {'repair was' if count == 1 else 'repairs were'} tried on a copy"
    return f"{tried}; with none of them does the forward run to its end" if not kept else tried


def _lines(explanation: Explanation):
    yield explanation.message
    yield f"  {explanation.error}"
    if site := place_text(explanation):
        yield ""
        yield f"where   {site}"
    if explanation.source and explanation.source.text:
        yield f"        {explanation.source.text}"
        if explanation.span:
            first, last = explanation.span
            yield f"        {' ' * first}{'^' * max(1, last - first)}"
    if explanation.operands:
        yield ""
        width = max(len(operand.name) for operand in explanation.operands)
        for operand in explanation.operands:
            shape = " = ".join(filter(None, [operand.symbols(), operand.numbers()]))
            origin = f", {operand.maker}" if operand.maker else ""
            yield f"  {operand.name:<{width}}  {shape}  {operand.dtype}{origin}"
            if operand.source:
                yield f"  {'':<{width}}  {operand.source.file}:{operand.source.line}  {operand.source.text}"
    if explanation.steps:
        yield ""
        yield "what ran before"
        for step in explanation.steps:
            shape = notation.shape_text(step.symbolic) if step.symbolic else str(list(step.shape))
            yield f"  {step.id}  {shape}  {f'{step.source.file}:{step.source.line}' if step.source else ''}".rstrip()
    for number, fix in enumerate(explanation.fixes, 1):
        yield ""
        yield f"repair {number}: {fix.message} ({trial_text(fix)})"
        for line in fix.diff().splitlines():
            yield f"  {line}"
        yield f"  {fix.caution}"
    if attempts := attempts_text(explanation):
        yield ""
        yield f"{attempts}."
    if explanation.messages:
        yield ""
        yield "at other sizes"
        for sizes, message in explanation.messages:
            yield f"  {sizes_text(sizes)}: {message or 'the forward pass runs to the end'}"
    for note in explanation.notes:
        yield ""
        yield note


STYLE = (
    "<style>.tracer-why{font:14px/1.5 system-ui,sans-serif;max-width:60rem}.tracer-why pre{margin:.3rem 0;padding:.5rem"
    " .7rem;overflow-x:auto;border:1px solid #8885;border-radius:4px;font:13px/1.5 ui-monospace,monospace}"
    ".tracer-why mark{background:#c0392b;color:#fff;padding:0 .2em;border-radius:3px}.tracer-why td{padding:.1rem"
    " .8rem .1rem 0;vertical-align:top;text-align:left}.tracer-why .add{color:#1e7d46}.tracer-why .cut{color:#b03a2e}"
    "</style>"
)
"""The look of an explanation in a notebook; colours that are readable on light and on dark pages."""


def _html(explanation: Explanation) -> str:
    parts = [STYLE, '<div class="tracer-why">', f"<p><b>{escape(explanation.message)}</b></p>"]
    parts.append(f"<p><code>{escape(explanation.error)}</code></p>")
    if explanation.source:
        code = escape(explanation.source.text)
        if explanation.span:
            first, last = explanation.span
            text = explanation.source.text
            code = f"{escape(text[:first])}<mark>{escape(text[first:last])}</mark>{escape(text[last:])}"
        parts.append(f"<div>{escape(place_text(explanation))}</div><pre>{code}</pre>")
    if explanation.operands:
        rows = "".join(_operand_row(operand) for operand in explanation.operands)
        parts.append(f"<table>{rows}</table>")
    for number, fix in enumerate(explanation.fixes, 1):
        diff = "\n".join(
            f'<span class="{"add" if line.startswith("+") else "cut"}">{escape(line)}</span>'
            for line in fix.diff().splitlines()
        )
        parts.append(f"<div>Repair {number}: {escape(fix.message)} ({escape(trial_text(fix))})</div>")
        parts.append(f"<pre>{diff}</pre>" if diff else "")
        parts.append(f"<div>{escape(fix.caution)}</div>")
    if attempts := attempts_text(explanation):
        parts.append(f"<p>{escape(attempts)}.</p>")
    parts += [f"<p>{escape(note)}</p>" for note in explanation.notes]
    return "".join([*parts, "</div>"])


def _operand_row(operand: Operand) -> str:
    left, right = "\x00", "\x01"
    shapes = [
        escape(shape).replace(left, "<mark>").replace(right, "</mark>")
        for shape in (operand.symbols(left + "{}" + right), operand.numbers(left + "{}" + right))
        if shape
    ]
    origin = escape(operand.maker)
    if operand.source:
        origin += f"<br><code>{escape(operand.source.text)}</code>"
    cells = [f"<code>{escape(operand.name)}</code>", " = ".join(shapes), escape(operand.dtype), origin]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
