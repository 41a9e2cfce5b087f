"""Errors of Python in a forward or a constructor, in plain sentences: names that are not there, arguments that are
missing, values that are None."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torch import Tensor, nn

from tracer.diagnostics.failures.explanation import Edit
from tracer.diagnostics.failures.place import UNKNOWN, Place, is_users
from tracer.diagnostics.failures.source_edits import edit_node, edit_span
from tracer.diagnostics.failures.trials import Candidate
from tracer.utils import python_source
from tracer.utils.error_text import quote, reason, shorten

NEAR = 0.6
"""The least likeness of two names."""


@dataclass(frozen=True)
class Sentence:
    """The kind of an error, and its reason."""

    kind: str
    message: str


def sentence_of(error: BaseException, place: Place) -> Sentence:
    """Return an error of Python in a sentence."""
    rule = next((rule for kind, rule in RULES if isinstance(error, kind)), _plain)
    return rule(error, place) or _plain(error, place)


def _plain(error: BaseException, place: Place) -> Sentence:
    name = type(error).__name__
    text = reason(error) if str(error) else ""
    raised = isinstance(place.node, ast.Raise) or (
        place.lines[place.line - 1 : place.line][0:1] and place.lines[place.line - 1].lstrip().startswith("raise")
    )
    values = _values_text(place, _condition(place) if raised else place.node)
    if raised:
        return Sentence(
            "refusal", f"The code itself refuses: {text or name}{'.' if not text.endswith('.') else ''}{values}"
        )
    if place.is_outside(error) and isinstance(place.node, ast.Call):
        return _refusal(error, place)
    return Sentence("error", f"{name}: {text or 'without a message'}{'' if text.endswith('.') else '.'}{values}")


def _refusal(error: BaseException, place: Place) -> Sentence:
    """Return the sentence of an error that a function of a library raised on its arguments."""
    text = (reason(error) if str(error) else type(error).__name__).rstrip(".")
    what = f"`{shorten(place.text_of(place.node), 60)}`" if isinstance(place.node, ast.Call) else "The line"
    return Sentence("refusal", f"{what} is refused: {text}.{_order_text(place)}{_values_text(place, place.node)}")


def _order_text(place: Place) -> str:
    """Return the order of axes that a layer of sequences takes, where the failed line calls one."""
    for module in reversed(place.modules[place.own :]):
        if isinstance(first := getattr(module, "batch_first", None), bool):
            order = "[B, T, D]" if first else "[T, B, D]"
            return f" `{type(module).__name__}` takes {order}, since batch_first is {first}."
    return ""


def _condition(place: Place) -> ast.AST | None:
    """Return the condition of the `if` around the failed line."""
    around = (
        [
            node
            for node in ast.walk(place.tree)
            if isinstance(node, ast.If) and any(s.lineno <= place.line <= (s.end_lineno or 0) for s in node.body)
        ]
        if place.tree
        else []
    )
    return around[-1].test if around else None


def _values_text(place: Place, node: ast.AST | None) -> str:
    """Return the values of the names in a condition, `D = 10, h = 3`."""
    if node is None:
        return ""
    texts: dict[str, str] = {}
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(getattr(inner, "ctx", None), ast.Load):
            value = place.value(inner)
            if isinstance(value, (int, float, str, tuple)) and value is not UNKNOWN:
                texts[place.text_of(inner)] = quote(value, 40) if isinstance(value, str) else str(value)
            elif isinstance(value, Tensor):
                texts[place.text_of(inner)] = f"tensor {list(value.shape)}"
    return f" Here {', '.join(f'{name} = {value}' for name, value in texts.items())}." if texts else ""


def _assertion(error: AssertionError, place: Place) -> Sentence:
    node = (
        next(
            (
                n
                for n in ast.walk(place.tree)
                if isinstance(n, ast.Assert) and n.lineno <= place.line <= (n.end_lineno or 0)
            ),
            None,
        )
        if place.tree
        else None
    )
    if node is None:
        return _refusal(error, place)
    stated = f" ({reason(error)})" if str(error) else ""
    return Sentence("assertion", f"`{place.text_of(node.test)}` does not hold{stated}.{_values_text(place, node.test)}")


def _attribute(error: AttributeError, place: Place) -> Sentence | None:
    name, holder = error.name, error.obj
    match = re.search(r"has no attribute '(\w+)'", str(error))
    name = name or (match[1] if match else None)
    if "before Module.__init__() call" in str(error):
        return Sentence(
            "attribute",
            "`super().__init__()` has to be the first line of `__init__`: before it, a module can hold no other.",
        )
    if name is None:
        return None
    if holder is None and "'NoneType'" in str(error):
        return Sentence("none", f"{_none_text(place)} so it has no `{name}`.")
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
            f"{_subject(place)} is a {type(holder).__name__} of {len(holder)} values, {_items(holder)}, and not a "
            f"tensor: it has no `{name}`.",
        )
    if holder is not None:
        near = close_names(name, dir(holder))
        kind = "a tensor" if isinstance(holder, Tensor) else f"of the type `{type(holder).__name__}`"
        return Sentence(
            "attribute", f"{_subject(place)} is {kind} and has no `{name}`{f'; it has `{near[0]}`' if near else ''}."
        )
    return None


def _subject(place: Place) -> str:
    """Return what stands before the dot, in the failed expression."""
    node = place.node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func
    return f"`{place.text_of(node.value)}`" if isinstance(node, ast.Attribute) else "the value"


def _items(values: Any) -> str:
    shown = [str(list(v.shape)) if isinstance(v, Tensor) else type(v).__name__ for v in values[:4]]
    return ", ".join(shown)


def _none_text(place: Place) -> str:
    """Return which value is None, and why, as far as the source shows it."""
    for operand in place.operands:
        if operand.value is None:
            line, kind = _assigned_by_module(place, operand.node)
            if kind is None and (caller := place.caller) is not None and _is_parameter(place, operand.node):
                line, kind = _none_by_module(caller)
            if kind is not None:
                return f"`{operand.text}` is None: `{kind}.forward`, called in line {line}, returns nothing,"
            return f"`{operand.text}` is None{f', from line {line}' if line else ''},"
    for operand in place.operands:
        if (called := _called_module(place, operand.node)) is not None:
            return f"`{operand.text}` is None: `{type(called).__name__}.forward` returns nothing,"
    return "A value is None,"


def _is_parameter(place: Place, node: ast.AST) -> bool:
    """Return whether a name is a parameter of the function that failed."""
    code = place.code
    return isinstance(node, ast.Name) and node.id in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _none_by_module(place: Place) -> tuple[int, str | None]:
    """Return the line in which a module returned the None that a call passes on, and the module's class."""
    for operand in place.operands:
        if operand.value is None:
            return _assigned_by_module(place, operand.node)
    return 0, None


def _assigned_by_module(place: Place, node: ast.AST) -> tuple[int, str | None]:
    """Return the last line before that gives a name its value, and the class whose forward returned it, if it has no
    `return`."""
    if not isinstance(node, ast.Name) or place.tree is None:
        return 0, None
    assignments = [
        line
        for line in ast.walk(place.tree)
        if isinstance(line, ast.Assign)
        and place.code.co_firstlineno <= line.lineno < place.line
        and any(isinstance(target, ast.Name) and target.id == node.id for target in line.targets)
    ]
    if not assignments:
        return 0, None
    last = max(assignments, key=lambda line: line.lineno)
    module = _called_module(place, last.value)
    return last.lineno, type(module).__name__ if module is not None and not returns(type(module).forward) else None


def _called_module(place: Place, node: ast.AST | None) -> nn.Module | None:
    if isinstance(node, ast.Call):
        value = place.value(node.func)
        return value if isinstance(value, nn.Module) else None
    return None


def returns(function: Callable) -> bool:
    """Return whether a function has a `return` with a value, or its source is not known."""
    try:
        lines, _ = inspect.getsourcelines(function)
        tree = python_source.parse(inspect.cleandoc("\n" + "".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return True
    return any(isinstance(n, (ast.Return, ast.Yield)) and n.value is not None for n in ast.walk(tree))


def module_names(module: nn.Module) -> list[str]:
    """Return the names that a module has."""
    return [*dir(module), *vars(module)]


def close_names(name: str, names: Any) -> list[str]:
    """Return the names that are most like one."""
    public = [
        n
        for n in dict.fromkeys(names)
        if isinstance(n, str) and (not n.startswith("_") or name.startswith("_")) and n != name
    ]
    inside = [n for n in public if len(n) > 1 and (n.startswith(name) or name.startswith(n))]
    return list(dict.fromkeys([*get_close_matches(name, public, 3, NEAR), *sorted(inside, key=len)]))


def _type(error: TypeError, place: Place) -> Sentence | None:
    text = str(error)
    if "NoneType" in text:
        if "argument" in text and not any(o.value is None for o in place.operands):
            return Sentence("none", f"{reason(error)}.")
        return Sentence("none", f"{_none_text(place)} and the line needs a value.")
    if match := re.search(r"must be (?:a )?Tensors?, not (tuple|list)", text) or re.search(
        r"not supported between instances|for [^:]+: '(tuple)'|must be tuple of Tensors, not (Tensor)", text
    ):
        holder = next((o for o in place.operands if isinstance(o.value, (tuple, list))), None)
        if holder is not None:
            return Sentence(
                "tuple",
                f"`{holder.text}` is a {type(holder.value).__name__} of {len(holder.value)} values, "
                f"{_items(holder.value)}, and the line needs a tensor.",
            )
        del match
    if match := re.search(r"(\w+)\(\) missing (\d+) required (?:positional |keyword-only )?arguments?: (.+)", text):
        return Sentence(
            "argument",
            f"`{_callee(place)}` needs {match[3].replace(chr(39), '`')}, and the call does not pass "
            f"it.{_signature(place)}",
        )
    if match := re.search(r"got an unexpected keyword argument '(\w+)'", text):
        return Sentence("argument", f"`{_callee(place)}` takes no argument `{match[1]}`.{_signature(place)}")
    if match := re.search(r"takes (?:from )?([\w ]+) positional arguments? but (\d+) (?:was|were) given", text):
        return Sentence(
            "argument",
            f"`{_callee(place)}` takes fewer arguments than the {int(match[2]) - 1} of the call.{_signature(place)}",
        )
    if match := re.search(r"got multiple values for argument '(\w+)'", text):
        return Sentence(
            "argument", f"`{_callee(place)}` gets `{match[1]}` twice, by its place and by its name.{_signature(place)}"
        )
    if "not callable" in text:
        return Sentence("call", f"`{_callee(place)}` can't be called: {text}.")
    return Sentence(
        "type", f"{reason(error)}{'' if reason(error).endswith('.') else '.'}{_values_text(place, place.node)}"
    )


def callee(place: Place) -> Any:
    """Return what the failed line calls; None where that is not known."""
    node = place.node
    if isinstance(node, ast.Call):
        value = place.value(node.func)
        return None if value is UNKNOWN else value
    return None


def _callee(place: Place) -> str:
    return (
        place.text_of(place.node.func)
        if isinstance(place.node, ast.Call)
        else type(place.modules[-1]).__name__
        if place.modules
        else "the function"
    )


def signature(value: Any) -> inspect.Signature | None:
    """Return the signature of a function, or of the forward of a module."""
    try:
        return inspect.signature(value.forward if isinstance(value, nn.Module) else value)
    except (TypeError, ValueError):
        return None


def _signature(place: Place) -> str:
    value = callee(place)
    parameters = signature(value) if value is not None else None
    if parameters is None:
        return ""
    kind = f"`{type(value).__name__}.forward`" if isinstance(value, nn.Module) else "It"
    return f" {kind} takes ({', '.join(map(str, parameters.parameters.values()))})."


def _name(error: NameError, place: Place) -> Sentence | None:
    name = error.name or (re.search(r"'(\w+)'", str(error)) or [None, None])[1]
    if name is None:
        return None
    if isinstance(error, UnboundLocalError):
        return Sentence(
            "name", f"`{name}` has no value yet in this line: it is assigned later, or in a branch that was not taken."
        )
    near = names_near(place, name)
    return Sentence("name", f"There is no name `{name}` here{f'; there is `{near[0]}`' if near else ''}.")


def names_near(place: Place, name: str) -> list[str]:
    """Return the names in reach that are like one, with `self.` where the module has it."""
    holder = place.frame.f_locals.get("self")
    own = [f"self.{n}" for n in module_names(holder) if n == name] if isinstance(holder, nn.Module) else []
    return [*own, *close_names(name, [*place.frame.f_locals, *place.frame.f_globals, *dir(builtins)])]


def _key(error: KeyError, place: Place) -> Sentence | None:
    key = error.args[0] if error.args else None
    holder = next((o for o in place.operands if isinstance(o.value, (dict, nn.ModuleDict, nn.ParameterDict))), None)
    if holder is None:
        return Sentence("key", f"There is no entry {quote(key)}.")
    keys = list(holder.value.keys())
    near = close_names(str(key), keys)
    return Sentence(
        "key",
        f"`{holder.text}` has no entry {quote(key)}; it has "
        f"{quote(near[0]) if near else ', '.join(map(quote, keys[:6]))}.",
    )


def _value(error: ValueError, place: Place) -> Sentence | None:
    line = _assignment(place)
    if line is None or not re.search(r"not enough values to unpack|too many values to unpack", str(error)):
        return None
    names, right = line.targets[0], line.value
    known = place.value(right)
    if not isinstance(names, (ast.Tuple, ast.List)) or not isinstance(known, (tuple, list)):
        return None
    shown = list(known) if all(isinstance(item, int) for item in known) else _items(known)
    return Sentence(
        "unpack",
        f"The line unpacks {len(names.elts)} values, `{place.text_of(names)}`, and `{place.text_of(right)}` has "
        f"{len(known)}: {shown}.",
    )


def _assignment(place: Place) -> ast.Assign | None:
    if place.tree is None:
        return None
    return next(
        (
            n
            for n in ast.walk(place.tree)
            if isinstance(n, ast.Assign) and n.lineno <= place.line <= (n.end_lineno or 0)
        ),
        None,
    )


def _missing_forward(error: NotImplementedError, place: Place) -> Sentence | None:
    match = re.search(r"Module \[(\w+)\] is missing the required \"forward\" function", str(error))
    if not match:
        return None
    module = next((m for m in reversed(place.modules) if type(m).__name__ == match[1]), None)
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


def _index(error: IndexError, place: Place) -> Sentence | None:
    holder = next((o for o in place.operands if isinstance(o.value, (list, tuple, nn.ModuleList, nn.Sequential))), None)
    if holder is None:
        return None
    return Sentence(
        "index",
        f"`{holder.text}` has {len(holder.value)} items, 0 to {len(holder.value) - 1}: "
        f"`{place.text_of(place.node) if place.node else 'the index'}` is past its end.",
    )


RULES: tuple[tuple[type[BaseException], Callable[..., Sentence | None]], ...] = (
    (AssertionError, _assertion),
    (AttributeError, _attribute),
    (NameError, _name),
    (TypeError, _type),
    (KeyError, _key),
    (IndexError, _index),
    (NotImplementedError, _missing_forward),
    (ValueError, _value),
)


def python_repairs(error: BaseException, place: Place) -> Iterator[Candidate]:
    """Yield repairs of an error of Python."""
    file, lines, node = place.file, place.lines, place.node
    if not lines:
        return
    for number, operand in enumerate(place.operands):
        if isinstance(operand.value, (tuple, list)) and not isinstance(operand.node, (ast.Tuple, ast.List)):
            index = next((i for i, item in enumerate(operand.value) if isinstance(item, Tensor)), None)
            if index is not None:
                text = f"{operand.atom}[{index}]"
                edit = edit_node(file, lines, operand.node, text)
                yield Candidate(f"write `{text}` in the place of `{operand.text}`", 1 + number / 10, (edit,))
    if isinstance(error, AttributeError) and error.name:
        yield from _attribute_repairs(error, place)
    elif isinstance(error, NameError) and error.name:
        where = [n for n in _nodes_of_line(place) if isinstance(n, ast.Name) and n.id == error.name]
        for rank, near in enumerate(names_near(place, error.name)[:3] if where else ()):
            edit = edit_node(file, lines, where[0], near)
            yield Candidate(f"write `{near}` in the place of `{error.name}`", 1 + rank / 10, (edit,))
    elif isinstance(error, KeyError) and error.args:
        yield from _key_repairs(error, place)
    elif isinstance(error, TypeError) and isinstance(node, ast.Call):
        yield from _argument_repairs(error, place, node)
    if "None" in str(error) or "NoneType" in str(error):
        yield from _return_repairs(place)
    yield from _forward_repairs(error, place)
    yield from _super_repairs(error, place)


def _nodes_of_line(place: Place) -> list[ast.AST]:
    if place.tree is None:
        return []
    return [n for n in ast.walk(place.tree) if getattr(n, "lineno", 0) == place.line]


def _attribute_repairs(error: AttributeError, place: Place) -> Iterator[Candidate]:
    name, holder = error.name, error.obj
    where = next((n for n in _nodes_of_line(place) if isinstance(n, ast.Attribute) and n.attr == name), None)
    if where is None or holder is None or name is None:
        return
    names = module_names(holder) if isinstance(holder, nn.Module) else dir(holder)
    for rank, near in enumerate(close_names(name, names)[:3]):
        text = f"{place.text_of(where.value)}.{near}"
        yield Candidate(f"write `{text}`", 1 + rank / 10, (edit_node(place.file, place.lines, where, text),))


def _key_repairs(error: KeyError, place: Place) -> Iterator[Candidate]:
    for holder in place.operands:
        if not isinstance(holder.value, (dict, nn.ModuleDict)):
            continue
        nodes = (n for n in _nodes_of_line(place) if isinstance(n, ast.Constant) and n.value == error.args[0])
        if (where := next(nodes, None)) is None:
            continue
        for rank, near in enumerate(close_names(str(error.args[0]), list(holder.value.keys()))[:2]):
            edit = edit_node(place.file, place.lines, where, repr(near))
            yield Candidate(f"write `{near!r}`", 1 + rank / 10, (edit,))


def _argument_repairs(error: TypeError, place: Place, node: ast.Call) -> Iterator[Candidate]:
    file, lines, text = place.file, place.lines, str(error)
    if match := re.search(r"unexpected keyword argument '(\w+)'", text):
        keyword = next((k for k in node.keywords if k.arg == match[1]), None)
        parameters = signature(callee(place))
        if keyword is not None:
            names = list(parameters.parameters) if parameters is not None else []
            taken = {k.arg for k in node.keywords} | set(names[: len(node.args)])
            for rank, near in enumerate(n for n in close_names(match[1], names) if n not in taken):
                new = f"{near}={place.text_of(keyword.value)}"
                yield Candidate(f"pass it as `{near}=`", 1 + rank / 10, (edit_node(file, lines, keyword, new),))
            yield _without(place, node, keyword, 1.5)
    elif "missing" in text:
        parameters = signature(callee(place))
        given = list(node.args)
        for name in re.findall(r"'(\w+)'", text):
            local = place.frame.f_locals.get(name)
            for value, cost in ((name, 1.0), ("None", 1.4), (place.text_of(given[-1]) if given else "", 1.6)):
                if not value or (value == name and local is None):
                    continue
                yield Candidate(
                    f"pass `{name}={value}`", cost, (_with_argument(place, node, f"{name}={value}"),), family="argument"
                )
        del parameters
    elif "positional argument" in text and node.args:
        yield _without(place, node, node.args[-1], 1.2)
    elif (match := re.search(r"multiple values for argument '(\w+)'", text)) and node.keywords:
        keyword = next((k for k in node.keywords if k.arg == match[1]), None)
        if keyword is not None:
            yield _without(place, node, keyword, 1.2)


def _with_argument(place: Place, node: ast.Call, text: str) -> Edit:
    end = (node.end_lineno or node.lineno, (node.end_col_offset or 1) - 1)
    comma = ", " if node.args or node.keywords else ""
    return edit_span(place.file, place.lines, end, end, f"{comma}{text}")


def _without(place: Place, node: ast.Call, argument: ast.AST, cost: float) -> Candidate:
    kept = [place.text_of(a) for a in (*node.args, *node.keywords) if a is not argument]
    text = f"{place.text_of(node.func)}({', '.join(kept)})"
    return Candidate(f"leave out `{place.text_of(argument)}`", cost, (edit_node(place.file, place.lines, node, text),))


def _return_repairs(place: Place) -> Iterator[Candidate]:
    """Yield the repair of a forward of the same file that returns nothing: its last value is returned."""
    if place.tree is None:
        return
    kinds = {type(module).__name__ for module in place.modules} | _modules_called(place)
    for node in ast.walk(place.tree):
        if not isinstance(node, ast.ClassDef) or node.name not in kinds:
            continue
        for function in node.body:
            if not isinstance(function, ast.FunctionDef) or function.name != "forward":
                continue
            if any(isinstance(n, ast.Return) and n.value is not None for n in ast.walk(function)):
                continue
            last = function.body[-1]
            if isinstance(last, ast.Expr):
                edit = edit_node(place.file, place.lines, last, f"return {place.text_of(last)}")
            elif isinstance(last, ast.Assign) and isinstance(last.targets[0], ast.Name):
                edit = edit_node(place.file, place.lines, last, f"return {place.text_of(last.value)}")
            elif isinstance(last, ast.AugAssign) and isinstance(last.target, ast.Name):
                edit = edit_node(place.file, place.lines, last, f"{place.text_of(last)}; return {last.target.id}")
            elif isinstance(last, ast.Return):
                names = [
                    n.targets[0].id
                    for n in function.body
                    if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
                ]
                names = names or [a.arg for a in function.args.args[1:2]]
                edit = edit_node(place.file, place.lines, last, f"return {names[-1]}")
            else:
                continue
            yield Candidate(f"return the last value of `{node.name}.forward`", 1.0, (edit,))


def _modules_called(place: Place) -> set[str]:
    holder = place.frame.f_locals.get("self")
    if not isinstance(holder, nn.Module):
        return set()
    return {
        type(module).__name__
        for module in holder.modules()
        if is_users(type(module).forward.__code__)
        if hasattr(type(module).forward, "__code__")
    }


def _forward_repairs(error: BaseException, place: Place) -> Iterator[Candidate]:
    """Yield the right name of a forward that is spelled otherwise."""
    match = re.search(r"Module \[(\w+)\] is missing the required \"forward\" function", str(error))
    if not match or place.tree is None:
        return
    for node in ast.walk(place.tree):
        if isinstance(node, ast.ClassDef) and node.name == match[1]:
            names = [f for f in node.body if isinstance(f, ast.FunctionDef)]
            near = close_names("forward", [f.name for f in names])
            function = next((f for f in names if near and f.name == near[0]), None)
            if function is not None:
                line = place.lines[function.lineno - 1]
                column = len(line[: line.index(function.name)].encode())
                start, end = (function.lineno, column), (function.lineno, column + len(function.name.encode()))
                edit = edit_span(place.file, place.lines, start, end, "forward")
                yield Candidate(f"call the method `forward` and not `{function.name}`", 1.0, (edit,))


def _super_repairs(error: BaseException, place: Place) -> Iterator[Candidate]:
    """Yield the call that a constructor has to begin with."""
    if "before Module.__init__() call" not in str(error) or place.tree is None:
        return
    for node in ast.walk(place.tree):
        if (
            isinstance(node, ast.FunctionDef)
            and node.name == "__init__"
            and node.lineno <= place.line <= (node.end_lineno or 0)
        ):
            first = node.body[0]
            at = (first.lineno, first.col_offset)
            yield Candidate(
                "begin `__init__` with `super().__init__()`",
                1.0,
                (edit_span(place.file, place.lines, at, at, "super().__init__(); "),),
            )
