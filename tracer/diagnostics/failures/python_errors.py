"""Errors of Python in a forward or a constructor, in plain sentences: undefined names, missing arguments, values that
are None."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tracer.diagnostics.failures.failure_site import UNKNOWN_SITE, Expression, FailureSite, is_users
from tracer.diagnostics.failures.state_dicts import loading_of, loading_text
from tracer.diagnostics.failures.trials import Candidate, Clash, Scene, move
from tracer.utils import files
from tracer.utils.errors import quote, reason, shorten
from tracer.utils.files import add_argument, edit_span

MIN_SIMILARITY = 0.6
"""The least likeness of two names."""
BEFORE_INIT = "before Module.__init__() call"
"""What PyTorch says of a module that holds another before it is one itself."""
MISSING_FORWARD = re.compile(r"Module \[(\w+)\] is missing the required \"forward\" function")
"""What PyTorch says of a module that can't be called."""


@dataclass(frozen=True)
class Sentence:
    """Kind of an error, and its reason."""

    kind: str
    message: str


SENTENCES: dict[type[BaseException], Callable[..., Sentence | None]] = {}
"""The functions that return an error in a sentence, None where it is of another form, by its class."""


def sentence(kind: type[BaseException]) -> Callable[[Callable], Callable]:
    """Register the function that returns errors of a class in a sentence."""

    def register(function: Callable[..., Sentence | None]) -> Callable:
        SENTENCES[kind] = function
        return function

    return register


def sentence_of(error: BaseException, site: FailureSite) -> Sentence:
    """Return an error of Python in a sentence."""
    rule = next((rule for kind, rule in SENTENCES.items() if isinstance(error, kind)), _plain)
    return rule(error, site) or _plain(error, site)


def _plain(error: BaseException, site: FailureSite) -> Sentence:
    name = type(error).__name__
    text = reason(error) if str(error) else ""
    raised = isinstance(site.node, ast.Raise) or (
        site.lines[site.line - 1 : site.line][0:1] and site.lines[site.line - 1].lstrip().startswith("raise")
    )
    values = _values_text(site, _condition(site) if raised else site.node)
    if raised:
        return Sentence(
            "refusal", f"The code itself refuses: {text or name}{'.' if not text.endswith('.') else ''}{values}"
        )
    if site.is_outside(error) and isinstance(site.node, ast.Call):
        return _refusal(error, site)
    return Sentence("error", f"{name}: {text or 'without a message'}{'' if text.endswith('.') else '.'}{values}")


def _refusal(error: BaseException, site: FailureSite) -> Sentence:
    """Return the sentence of an error that a function of a library raised on its arguments."""
    text = (reason(error) if str(error) else type(error).__name__).rstrip(".")
    what = f"`{shorten(site.text_of(site.node), 60)}`" if isinstance(site.node, ast.Call) else "The line"
    return Sentence("refusal", f"{what} is refused: {text}.{_order_text(site)}{_values_text(site, site.node)}")


def _order_text(site: FailureSite) -> str:
    """Return the order of axes that a layer of sequences takes, where the failed line calls one."""
    for module in reversed(site.modules[site.own :]):
        if isinstance(first := getattr(module, "batch_first", None), bool):
            order = "[B, T, D]" if first else "[T, B, D]"
            return f" `{type(module).__name__}` takes {order}, since batch_first is {first}."
    return ""


def _condition(site: FailureSite) -> ast.AST | None:
    """Return the condition of the `if` around the failed line."""
    around = [node for node in site.nodes(ast.If) if any(site.line in files.lines(line) for line in node.body)]
    return around[-1].test if around else None


def _values_text(site: FailureSite, node: ast.AST | None) -> str:
    """Return the values of the names in a condition, `D = 10, h = 3`."""
    if node is None:
        return ""
    texts: dict[str, str] = {}
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(getattr(inner, "ctx", None), ast.Load):
            value = site.value(inner)
            if (text := _value_text(value)) is not None:
                texts[site.text_of(inner)] = text
    return f" Here {', '.join(f'{name} = {value}' for name, value in texts.items())}." if texts else ""


def _value_text(value: Any) -> str | None:
    """Return a number, a text, the shape of a tensor, or a tuple of those; None for other values."""
    if isinstance(value, Tensor):
        return f"tensor {list(value.shape)}"
    if isinstance(value, str):
        return quote(value, 40)
    if isinstance(value, (int, float, torch.Size)):
        return str(value)
    texts = [_value_text(item) for item in value] if isinstance(value, tuple) else [None]
    return None if None in texts else f"({', '.join(map(str, texts))}{',' * (len(texts) == 1)})"


@sentence(AssertionError)
def _assertion(error: AssertionError, site: FailureSite) -> Sentence:
    node = next(site.nodes_around(ast.Assert), None)
    if node is None:
        return _refusal(error, site)
    stated = f" ({reason(error)})" if str(error) else ""
    return Sentence("assertion", f"`{site.text_of(node.test)}` does not hold{stated}.{_values_text(site, node.test)}")


@sentence(AttributeError)
def _attribute(error: AttributeError, site: FailureSite) -> Sentence | None:
    name, holder = error.name, error.obj
    match = re.search(r"has no attribute '(\w+)'", str(error))
    name = name or (match[1] if match else None)
    if BEFORE_INIT in str(error):
        return Sentence(
            "attribute",
            "`super().__init__()` has to be the first line of `__init__`: before it, a module can hold no other.",
        )
    if name is None:
        return None
    if holder is None and "'NoneType'" in str(error):
        return Sentence("none", f"{_none_text(site)} so it has no `{name}`.")
    if isinstance(holder, nn.Module):
        near = close_names(name, module_names(holder))
        more = (
            f"; it has `{near[0]}`"
            if near
            else f"; it has {', '.join(f'`{n}`' for n in [name for name, _ in holder.named_children()][:6])}"
            if any(True for _ in holder.children())
            else ""
        )
        return Sentence("attribute", f"`{type(holder).__name__}` has no attribute `{name}`{more}.")
    if isinstance(holder, (tuple, list)):
        return Sentence(
            "attribute",
            f"{_subject(site)} is a {type(holder).__name__} of {len(holder)} values, {_items(holder)}, and not a "
            f"tensor: it has no `{name}`.",
        )
    if holder is not None:
        near = close_names(name, dir(holder))
        kind = "a tensor" if isinstance(holder, Tensor) else f"of the type `{type(holder).__name__}`"
        return Sentence(
            "attribute", f"{_subject(site)} is {kind} and has no `{name}`{f'; it has `{near[0]}`' if near else ''}."
        )
    return None


def _subject(site: FailureSite) -> str:
    """Return the text before the dot, in the failed expression."""
    node = site.node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func
    return f"`{site.text_of(node.value)}`" if isinstance(node, ast.Attribute) else "the value"


def _items(values: Any) -> str:
    shown = [str(list(v.shape)) if isinstance(v, Tensor) else type(v).__name__ for v in values[:4]]
    return ", ".join(shown)


def _none_text(site: FailureSite) -> str:
    """Return which value is None, and why, as far as the source shows it."""
    for operand in site.operands:
        if operand.value is None:
            line, kind = _assigned_by_module(site, operand.node)
            if kind is None and (caller := site.caller) is not None and _is_parameter(site, operand.node):
                line, kind = _none_by_module(caller)
            if kind is not None:
                return f"`{operand.text}` is None: `{kind}.forward`, called in line {line}, returns nothing,"
            return f"`{operand.text}` is None{f', from line {line}' if line else ''},"
    for operand in site.operands:
        if (called := _called_module(site, operand.node)) is not None:
            return f"`{operand.text}` is None: `{type(called).__name__}.forward` returns nothing,"
    return "A value is None,"


def _is_parameter(site: FailureSite, node: ast.AST) -> bool:
    """Return whether a name is a parameter of the function that failed."""
    code = site.code
    return isinstance(node, ast.Name) and node.id in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _none_by_module(site: FailureSite) -> tuple[int, str | None]:
    """Return the line in which a module returned the None that a call passes on, and the module's class."""
    for operand in site.operands:
        if operand.value is None:
            return _assigned_by_module(site, operand.node)
    return 0, None


def _assigned_by_module(site: FailureSite, node: ast.AST) -> tuple[int, str | None]:
    """Return the last line before that assigns a name, and the class whose forward returned it, if it has no
    `return`."""
    last = site.last_assignment(node.id) if isinstance(node, ast.Name) else None
    if last is None:
        return 0, None
    module = _called_module(site, last.value)
    return last.lineno, type(module).__name__ if module is not None and not returns(type(module).forward) else None


def _called_module(site: FailureSite, node: ast.AST | None) -> nn.Module | None:
    if isinstance(node, ast.Call):
        value = site.value(node.func)
        return value if isinstance(value, nn.Module) else None
    return None


def returns(function: Callable) -> bool:
    """Return whether a function has a `return` with a value, or its source is not known."""
    try:
        lines, _ = inspect.getsourcelines(function)
        tree = files.parse(inspect.cleandoc("\n" + "".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return True
    return any(isinstance(n, (ast.Return, ast.Yield)) and n.value is not None for n in ast.walk(tree))


def module_names(module: nn.Module) -> list[str]:
    """Return the names that a module has."""
    return [*dir(module), *vars(module)]


def close_names(name: str, names: Any) -> list[str]:
    """Return the names that resemble a name most."""
    public = [
        n
        for n in dict.fromkeys(names)
        if isinstance(n, str) and (not n.startswith("_") or name.startswith("_")) and n != name
    ]
    inside = [n for n in public if len(n) > 1 and (n.startswith(name) or name.startswith(n))]
    return list(dict.fromkeys([*get_close_matches(name, public, 3, MIN_SIMILARITY), *sorted(inside, key=len)]))


NEEDS_TENSOR = re.compile(
    r"must be (?:a )?Tensors?, not (tuple|list)|not supported between instances|for [^:]+: '(tuple)'"
    r"|must be tuple of Tensors, not (Tensor)"
)
"""What PyTorch and Python say of a tuple in the place of a tensor."""
ARGUMENT_ERRORS: dict[str, Callable[[re.Match[str]], str]] = {
    r"\w+\(\) missing \d+ required (?:positional |keyword-only )?arguments?: (.+)": lambda match: (
        f"needs {match[1].replace(chr(39), '`')}, and the call does not pass it"
    ),
    r"got an unexpected keyword argument '(\w+)'": lambda match: f"takes no argument `{match[1]}`",
    r"takes (?:from )?[\w ]+ positional arguments? but (\d+) (?:was|were) given": lambda match: (
        f"takes fewer arguments than the {int(match[1]) - 1} of the call"
    ),
    r"got multiple values for argument '(\w+)'": lambda match: f"gets `{match[1]}` twice, by its place and by its name",
}
"""What Python says of the arguments of a call, and what the called function then does."""


@sentence(TypeError)
def _type(error: TypeError, site: FailureSite) -> Sentence | None:
    text = str(error)
    if "NoneType" in text:
        if "argument" in text and not any(o.value is None for o in site.operands):
            return Sentence("none", f"{reason(error)}.")
        return Sentence("none", f"{_none_text(site)} and the line needs a value.")
    if NEEDS_TENSOR.search(text) and (holder := site.operand_of(tuple, list)) is not None:
        return Sentence(
            "tuple",
            f"`{holder.text}` is a {type(holder.value).__name__} of {len(holder.value)} values, "
            f"{_items(holder.value)}, and the line needs a tensor.",
        )
    for pattern, describe in ARGUMENT_ERRORS.items():
        if match := re.search(pattern, text):
            return Sentence("argument", f"`{_callee(site)}` {describe(match)}.{_signature(site)}")
    if "not callable" in text:
        return Sentence("call", f"`{_callee(site)}` can't be called: {text}.")
    return Sentence(
        "type", f"{reason(error)}{'' if reason(error).endswith('.') else '.'}{_values_text(site, site.node)}"
    )


def callee(site: FailureSite) -> Any:
    """Return the callee of the failed line; None where that is not known."""
    node = site.node
    if isinstance(node, ast.Call):
        value = site.value(node.func)
        return None if value is UNKNOWN_SITE else value
    return None


def _callee(site: FailureSite) -> str:
    return (
        site.text_of(site.node.func)
        if isinstance(site.node, ast.Call)
        else type(site.modules[-1]).__name__
        if site.modules
        else "the function"
    )


def signature(value: Any) -> inspect.Signature | None:
    """Return the signature of a function, or of the forward of a module."""
    try:
        return inspect.signature(value.forward if isinstance(value, nn.Module) else value)
    except (TypeError, ValueError):
        return None


def _signature(site: FailureSite) -> str:
    value = callee(site)
    parameters = signature(value) if value is not None else None
    if parameters is None:
        return ""
    kind = f"`{type(value).__name__}.forward`" if isinstance(value, nn.Module) else "It"
    return f" {kind} takes ({', '.join(map(str, parameters.parameters.values()))})."


@sentence(NameError)
def _name(error: NameError, site: FailureSite) -> Sentence | None:
    name = error.name or (re.search(r"'(\w+)'", str(error)) or [None, None])[1]
    if name is None:
        return None
    if isinstance(error, UnboundLocalError):
        return Sentence(
            "name", f"`{name}` has no value yet in this line: it is assigned later, or in a branch that was not taken."
        )
    near = names_near(site, name)
    return Sentence("name", f"There is no name `{name}` here{f'; there is `{near[0]}`' if near else ''}.")


def names_near(site: FailureSite, name: str) -> list[str]:
    """Return the similar names in scope, with `self.` where the module has them."""
    holder = site.frame.f_locals.get("self")
    own = [f"self.{n}" for n in module_names(holder) if n == name] if isinstance(holder, nn.Module) else []
    return [*own, *close_names(name, [*site.frame.f_locals, *site.frame.f_globals, *dir(builtins)])]


@sentence(KeyError)
def _key(error: KeyError, site: FailureSite) -> Sentence | None:
    key = error.args[0] if error.args else None
    holder = site.operand_of(dict, nn.ModuleDict, nn.ParameterDict)
    if holder is None:
        return Sentence("key", f"There is no entry {quote(key)}.")
    keys = list(holder.value.keys())
    near = close_names(str(key), keys)
    return Sentence(
        "key",
        f"`{holder.text}` has no entry {quote(key)}; it has "
        f"{quote(near[0]) if near else ', '.join(map(quote, keys[:6]))}.",
    )


@sentence(ValueError)
def _value(error: ValueError, site: FailureSite) -> Sentence | None:
    line = next(site.nodes_around(ast.Assign), None)
    if line is None or not re.search(r"not enough values to unpack|too many values to unpack", str(error)):
        return None
    names, right = line.targets[0], line.value
    known = site.value(right)
    if not isinstance(names, (ast.Tuple, ast.List)) or not isinstance(known, (tuple, list)):
        return None
    shown = list(known) if all(isinstance(item, int) for item in known) else _items(known)
    return Sentence(
        "unpack",
        f"The line unpacks {len(names.elts)} values, `{site.text_of(names)}`, and `{site.text_of(right)}` has "
        f"{len(known)}: {shown}.",
    )


@sentence(NotImplementedError)
def _missing_forward(error: NotImplementedError, site: FailureSite) -> Sentence | None:
    match = MISSING_FORWARD.search(str(error))
    if not match:
        return None
    module = next((m for m in reversed(site.modules) if type(m).__name__ == match[1]), None)
    if isinstance(module, nn.ModuleList):
        return Sentence(
            "forward", "A `ModuleList` is no layer: call its modules one after the other, or build a `Sequential`."
        )
    near = (
        close_names("forward", [n for n in vars(type(module)) if callable(getattr(module, n, None))])
        if module is not None
        else []
    )
    return Sentence("forward", f"`{match[1]}` has no method `forward`{f'; it has `{near[0]}`' if near else ''}.")


@sentence(IndexError)
def _index(error: IndexError, site: FailureSite) -> Sentence | None:
    holder = site.operand_of(list, tuple, nn.ModuleList, nn.Sequential)
    if holder is None:
        return None
    return Sentence(
        "index",
        f"`{holder.text}` has {len(holder.value)} items, 0 to {len(holder.value) - 1}: "
        f"`{site.text_of(site.node) if site.node else 'the index'}` is past its end.",
    )


@sentence(RuntimeError)
def _of_tensors(error: RuntimeError, site: FailureSite) -> Sentence | None:
    """Return the sentence of a state dict that does not load, or of a part of a tensor that is written with too many or
    too few numbers."""
    if (loading := loading_of(error)) is not None:
        return Sentence("state dict", loading_text(loading))
    if (write := write_of(site)) is None:
        return None
    part, values = write.part.value, write.values.value
    message = f"`{write.part.text}` is {list(part.shape)}, and `{write.values.text}`, which is written into it, is "
    return Sentence("assignment", f"{message}{list(values.shape)}.{''.join(_steps_text(write))}")


class Write(NamedTuple):
    """An assignment into a part of a tensor: the part, the values, the tensor, and the items of the index."""

    part: Expression
    values: Expression
    whole: Tensor
    items: list[ast.expr]


def write_of(site: FailureSite) -> Write | None:
    """Return the failed assignment into a part of a tensor; None for another line, and where the shapes fit."""
    line = next(site.nodes_around(ast.Assign), None)
    target = line.targets[0] if line is not None else None
    if line is None or not isinstance(target, ast.Subscript):
        return None
    part, values, whole = site.expression(target), site.expression(line.value), site.value(target.value)
    if not (isinstance(part.value, Tensor) and isinstance(values.value, Tensor) and isinstance(whole, Tensor)):
        return None
    sizes = zip(reversed(part.value.shape), reversed(values.value.shape), strict=False)
    if all(theirs in (1, ours) for ours, theirs in sizes) and values.value.dim() <= part.value.dim():
        return None
    items = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
    return Write(part, values, whole, items)


class Step(NamedTuple):
    """A slice of every so many places: its axis, its text, and its parts."""

    axis: int
    text: str
    start: int
    step: int


def steps_of(write: Write) -> Iterator[Step]:
    """Yield the slices with a step in a part of a tensor, with whole numbers, to its end."""
    for axis, item in enumerate(write.items):
        if isinstance(item, ast.Slice) and item.step is not None and item.upper is None:
            start, step = (getattr(node, "value", 0) for node in (item.lower, item.step))
            if type(start) is int and type(step) is int and step > 1 and axis < write.whole.dim():
                yield Step(axis, ast.unparse(item), start, step)


def _steps_text(write: Write) -> Iterator[str]:
    for axis, text, start, step in steps_of(write):
        length, count = write.whole.shape[axis], write.part.value.shape[axis]
        sign = {0: "⌈{}/{}⌉ = ", step - 1: "⌊{}/{}⌋ = "}.get(start, "").format(length, step)
        yield f" `{text}` takes {sign}{count} of the {length} places of axis {axis}"
        theirs = write.values.value.shape[axis - write.part.value.dim()] if write.values.value.dim() else 1
        both = -(-length // step) == theirs != count
        yield f", and the right side has ⌈{length}/{step}⌉ = {theirs}." if both else "."


# Repairs of errors of Python.

code_move = partial(move, edits="code")


@code_move(cost=1.0)
def write_a_close_name(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield names in scope that resemble one that is not."""
    error, site = scene.error, scene.site
    if not isinstance(error, NameError) or not error.name:
        return
    where = [n for n in site.nodes_of_line(ast.Name) if n.id == error.name]
    for rank, near in enumerate(names_near(site, error.name)[:3] if where else ()):
        message = f"write `{near}` in the place of `{error.name}`"
        yield Candidate(message, rank / 10, (scene.edit(where[0], near),))


@code_move(cost=1.0)
def write_a_close_attribute(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield attributes that resemble one that is missing."""
    error, site = scene.error, scene.site
    if not isinstance(error, AttributeError) or not error.name or error.obj is None:
        return
    where = next((n for n in site.nodes_of_line(ast.Attribute) if n.attr == error.name), None)
    if where is None:
        return
    names = module_names(error.obj) if isinstance(error.obj, nn.Module) else dir(error.obj)
    for rank, near in enumerate(close_names(error.name, names)[:3]):
        text = f"{site.text_of(where.value)}.{near}"
        yield Candidate(f"write `{text}`", rank / 10, (scene.edit(where, text),))


@code_move(cost=1.0)
def write_a_close_key(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield keys that resemble one that is missing."""
    if not isinstance(scene.error, KeyError) or not scene.error.args:
        return
    key = scene.error.args[0]
    for holder in scene.site.operands:
        if not isinstance(holder.value, (dict, nn.ModuleDict)):
            continue
        nodes = (n for n in scene.site.nodes_of_line(ast.Constant) if n.value == key)
        if (where := next(nodes, None)) is None:
            continue
        for rank, near in enumerate(close_names(str(key), list(holder.value.keys()))[:2]):
            yield Candidate(f"write `{near!r}`", rank / 10, (scene.edit(where, repr(near)),))


class RefusedCall(NamedTuple):
    """A call of the failed line whose arguments were refused, and what the error says of them."""

    node: ast.Call
    match: re.Match[str]

    def keyword(self) -> ast.keyword | None:
        """Return the argument that the error names."""
        return next((keyword for keyword in self.node.keywords if keyword.arg == self.match[1]), None)


def _refused(scene: Scene, pattern: str) -> Iterator[RefusedCall]:
    """Yield the call whose arguments were refused with such an error."""
    node = scene.site.node
    if (
        isinstance(scene.error, TypeError)
        and isinstance(node, ast.Call)
        and (match := re.search(pattern, str(scene.error)))
    ):
        yield RefusedCall(node, match)


UNEXPECTED = r"unexpected keyword argument '(\w+)'"


@code_move(cost=1.0)
def pass_by_a_close_name(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield an argument by a name that resembles one that is not taken."""
    for call in _refused(scene, UNEXPECTED):
        if (keyword := call.keyword()) is None:
            continue
        parameters = signature(callee(scene.site))
        names = list(parameters.parameters) if parameters is not None else []
        taken = {k.arg for k in call.node.keywords} | set(names[: len(call.node.args)])
        for rank, near in enumerate(n for n in close_names(call.match[1], names) if n not in taken):
            edit = scene.edit(keyword, f"{near}={scene.site.text_of(keyword.value)}")
            yield Candidate(f"pass it as `{near}=`", rank / 10, (edit,))


def leave_out(pattern: str, *, cost: float) -> None:
    """Register the call without the argument that such an error names, or without its last one, as a move."""

    @code_move(cost=cost)
    def candidates(scene: Scene, clash: Clash) -> Iterator[Candidate]:
        site = scene.site
        for call in _refused(scene, pattern):
            argument = call.keyword() if call.match.groups() else next(reversed(call.node.args), None)
            if argument is not None:
                kept = [site.text_of(a) for a in (*call.node.args, *call.node.keywords) if a is not argument]
                text = f"{site.text_of(call.node.func)}({', '.join(kept)})"
                yield Candidate(f"leave out `{site.text_of(argument)}`", edits=(scene.edit(call.node, text),))


leave_out(UNEXPECTED, cost=1.5)
leave_out(r"multiple values for argument '(\w+)'", cost=1.2)
leave_out(r"(?s)^(?!.*(?:missing|unexpected keyword)).*positional argument", cost=1.2)


@code_move(cost=1.0)
def pass_a_missing_argument(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the call with an argument that it lacks: a value of that name, None, or its last one."""
    site = scene.site
    for call in _refused(scene, r"(?s)^(?!.*unexpected keyword).*missing"):
        last = site.text_of(call.node.args[-1]) if call.node.args else ""
        for name in re.findall(r"'(\w+)'", str(scene.error)):
            for value, cost in ((name, 0.0), ("None", 0.4), (last, 0.6)):
                if not value or (value == name and site.frame.f_locals.get(name) is None):
                    continue
                edit = add_argument(site.file, site.lines, call.node, f"{name}={value}")
                yield Candidate(f"pass `{name}={value}`", cost, (edit,), family="argument")


@code_move(cost=1.0)
def return_the_last_value(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the repair of a forward of the same file that returns nothing: its last value is returned."""
    site = scene.site
    if "None" not in str(scene.error):
        return
    kinds = {type(module).__name__ for module in site.modules} | _modules_called(site)
    for node in site.nodes(ast.ClassDef):
        for function in node.body if node.name in kinds else ():
            if not isinstance(function, ast.FunctionDef) or function.name != "forward":
                continue
            if any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function)):
                continue
            last = function.body[-1]
            if isinstance(last, ast.Expr):
                edit = scene.edit(last, f"return {site.text_of(last)}")
            elif isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name):
                edit = scene.edit(last, f"return {site.text_of(last.value)}")
            elif isinstance(last, ast.AugAssign) and isinstance(last.target, ast.Name):
                edit = scene.edit(last, f"{site.text_of(last)}; return {last.target.id}")
            elif isinstance(last, ast.Return):
                names = [
                    n.targets[0].id
                    for n in function.body
                    if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
                ]
                names = names or [a.arg for a in function.args.args[1:2]]
                edit = scene.edit(last, f"return {names[-1]}")
            else:
                continue
            yield Candidate(f"return the last value of `{node.name}.forward`", edits=(edit,))


def _modules_called(site: FailureSite) -> set[str]:
    holder = site.frame.f_locals.get("self")
    if not isinstance(holder, nn.Module):
        return set()
    return {
        type(module).__name__
        for module in holder.modules()
        if is_users(type(module).forward.__code__)
        if hasattr(type(module).forward, "__code__")
    }


@code_move(cost=1.0)
def name_the_forward(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the right name of a forward that is misspelled."""
    site, match = scene.site, MISSING_FORWARD.search(str(scene.error))
    for node in site.nodes(ast.ClassDef):
        if match and node.name == match[1]:
            names = [f for f in node.body if isinstance(f, ast.FunctionDef)]
            near = close_names("forward", [f.name for f in names])
            function = next((f for f in names if near and f.name == near[0]), None)
            if function is not None:
                line = site.lines[function.lineno - 1]
                column = len(line[: line.index(function.name)].encode())
                start, end = (function.lineno, column), (function.lineno, column + len(function.name.encode()))
                edit = edit_span(site.file, site.lines, start, end, "forward")
                yield Candidate(f"call the method `forward` and not `{function.name}`", edits=(edit,))


@code_move(cost=1.0)
def call_the_constructor_of_modules(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the call that a constructor has to begin with."""
    site = scene.site
    for node in site.nodes_around(ast.FunctionDef) if BEFORE_INIT in str(scene.error) else ():
        if node.name == "__init__":
            at = (node.body[0].lineno, node.body[0].col_offset)
            edit = edit_span(site.file, site.lines, at, at, "super().__init__(); ")
            yield Candidate("begin `__init__` with `super().__init__()`", edits=(edit,))
