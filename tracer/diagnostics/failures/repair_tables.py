"""Moves that repair a table where its constructor computes it: angles of rotations, positions, masks of another size.

The constructor runs again with the arguments that it had. Where nobody kept those, they are solved: numbers with which
it computes the very tensors that the module has."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice, product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tracer.diagnostics.failures.explanation import Construction, Fix, assignments, construction_of, constructors_of
from tracer.diagnostics.failures.failure_site import Expression, FailureSite, callee_name, source_text, tree_of
from tracer.diagnostics.failures.python_errors import steps_of, write_of
from tracer.diagnostics.failures.repair_calls import MAX_STEPS, double_the_width, is_table, joined_lengths
from tracer.diagnostics.failures.repair_constructors import constructor_move
from tracer.diagnostics.failures.trials import Candidate, Clash, Rebinder, Scene, codes_of, path_of
from tracer.shapes import value_of
from tracer.symbols import notation
from tracer.utils.files import Edit, apply_edits, edit_node
from tracer.utils.torch_state import seeded_draws

MAX_CONSTRUCTIONS = 200
"""Most arguments with which a constructor is tried."""
MAX_CELLS = 2**20
"""Most numbers in the parameters of a module whose constructor runs again."""


@constructor_move("broadcast", "join", "product", "attention", cost=1.4)
def compute_a_table_of_another_size(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield a table that the constructor computes with a quotient or a multiple of one of its arguments, such as the
    width of a head for that of the model."""
    holder, operands = scene.site.frame.f_locals.get("self"), scene.operands
    sizes = [tensor.shape[axis] for tensor in scene.tensors for axis in clash.axes.get(id(tensor), ())]
    ratios = {max(sizes) // min(sizes)} if sizes and min(sizes) and not max(sizes) % min(sizes) else set()
    if not isinstance(holder, nn.Module) or not ratios:
        return
    path = path_of(scene.run.module, holder)
    for operand in operands:
        if not isinstance(operand.value, Tensor) or not is_table(scene, operand.value):
            continue
        for name in sorted(_attributes(scene, operand.node)):
            for file, lines, function in constructors_of(holder):
                nodes = _expressions(function, name)
                parameters = [argument.arg for argument in (*function.args.args[1:], *function.args.kwonlyargs)]
                used = {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name)}
                for size in (parameter for parameter in parameters if parameter in used):
                    others = [other for other in parameters if other != size]
                    texts = [f"{size} // {other}" for other in (*others, *ratios)]
                    multiples = [f"{size} * {ratio}" for ratio in ratios if not any(map(_is_of_halves, nodes))]
                    for number, text in enumerate([*texts, *multiples]):
                        edits = tuple(_replacements(file, lines, nodes, size, text))
                        message = f"compute `self.{name}` with `{text}` in the place of `{size}`"
                        change = _Rebuild(file, apply_edits(lines, edits), name)
                        cost = number / 50 + 0.7 * (text in multiples)
                        yield Candidate(message, cost, edits, path, change, family=message)


@constructor_move("broadcast", "product", cost=1.3)
def double_the_width_of_a_table(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield angles that a constructor computes for half of the width, each twice, so that all tables of their cosines
    and sines are as wide as what they turn."""
    holder = scene.site.frame.f_locals.get("self")
    if not isinstance(holder, nn.Module):
        return
    path, widths = path_of(scene.run.module, holder), {x.shape[-1] for x in scene.tensors if x.dim()}
    for operand in scene.operands:
        if not isinstance(operand.value, Tensor) or not operand.value.dim() or not is_table(scene, operand.value):
            continue
        for name in sorted(_attributes(scene, operand.node)) if 2 * operand.value.shape[-1] in widths else ():
            for file, lines, function in constructors_of(holder):
                named = {id(value) for target, value in assignments(function) if isinstance(target, ast.Name)}
                for number, node in enumerate(node for node in _expressions(function, name) if id(node) in named):
                    text = double_the_width(scene, Expression(node, source_text(lines, node)))
                    edit = edit_node(file, lines, node, text)
                    change = _Rebuild(file, apply_edits(lines, [edit]), name)
                    yield Candidate(f"compute `self.{name}` with `{text}`", number / 50, (edit,), path, change)


@constructor_move("broadcast", "join", "product", "mask", "attention", cost=0.8)
def lengthen_a_table(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield a table that is as long as what it meets, where that is longer: positions or a causal mask of more tokens.

    It comes before a cut of the input, which loses tokens. The size is written where it comes from: in the constructor,
    in the call of that, or in the default of its parameter.
    """
    for tensor in scene.tensors:
        name = table_behind(scene, tensor)
        holder_path, _, attribute = name.rpartition(".")
        for other, axis in _longer_axes(scene, tensor, clash) if name else ():
            size, length, formula = tensor.shape[axis], other.shape[axis], scene.formula(other, axis)
            holder = scene.run.module.get_submodule(holder_path)
            message = f"build `{name}` for {notation.text(formula)}{f' = {length}' * (formula != str(length))} places"
            for origin in _origins(scene, holder, holder_path, attribute, size):
                edits = tuple(edit_node(origin.file, origin.lines, node, str(length)) for node in origin.nodes)
                built = linecache.getlines(origin.constructor)
                text = "".join(built) if origin.parameter else apply_edits(built, edits)
                change = _Rebuild(origin.constructor, text, attribute, origin.parameter, formula, axis)
                where = f", with `{origin.parameter}={length}`" if origin.parameter else ""
                more = 1.5 * (
                    length - size in joined_lengths(scene, other, axis)
                )  # a class token, and no further places
                yield Candidate(message + where, origin.cost + more, edits, holder_path, change, family=message)


def _longer_axes(scene: Scene, tensor: Tensor, clash: Clash) -> Iterator[tuple[Tensor, int]]:
    """Yield the tensors of the failed call that are longer than one along an axis that clashes, and that axis, counted
    from the last."""
    for other in scene.tensors:
        for axis in clash.axes.get(id(tensor), ()) if other is not tensor else ():
            place = axis - tensor.dim() if axis >= 0 else axis
            if -other.dim() <= place and 1 < tensor.shape[place] < other.shape[place]:
                yield other, place


def table_behind(scene: Scene, tensor: Tensor) -> str:
    """Return the name of the parameter or buffer that a tensor was computed from alone; "" for none."""
    maker, ops = scene.maker(tensor), scene.run.recording.ops
    known = {name for name, _ in (*scene.run.module.named_parameters(), *scene.run.module.named_buffers())}
    for _ in range(MAX_STEPS):
        if isinstance(maker, str):
            return maker if maker in known else ""
        makers = {taken[2] for taken in ops[maker].inputs if taken[0]} if maker < len(ops) else set()
        if len(makers) != 1:
            return ""
        maker = makers.pop()
    return ""


class Origin(NamedTuple):
    """Where the size of a table is written: the nodes of a file, and the parameter of the constructor that they are the
    argument or the default of, "" for numbers in the constructor itself."""

    file: str
    lines: list[str]
    nodes: Sequence[ast.expr]
    constructor: str
    parameter: str
    cost: float


def _origins(scene: Scene, holder: nn.Module, path: str, table: str, size: int) -> Iterator[Origin]:
    """Yield where the size of a table of a module may come from."""
    for file, lines, function in constructors_of(holder):
        nodes = _expressions(function, table)
        inside = [inner for node in nodes for inner in ast.walk(node)]
        numbers = [n for n in inside if isinstance(n, ast.Constant) and type(n.value) is int and n.value == size]
        if numbers:
            yield Origin(file, lines, numbers, file, "", 0.2)
        names = dict.fromkeys(n.id for n in inside if isinstance(n, ast.Name))
        names |= dict.fromkeys(
            n.value.id for n in inside if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)
        )
        defaults = _defaults(function)
        for name in (name for name in names if name in {a.arg for a in _parameters(function)}):
            built = _call_of(scene, holder, path)
            written = built.argument(type(holder), name) if built else None
            default = defaults.get(name)
            if built and isinstance(written, ast.Constant) and written.value == size:
                yield Origin(built.file, built.lines, [written], file, name, 0.0)
            elif not written and isinstance(default, ast.Constant) and default.value == size:
                yield Origin(file, lines, [default], file, name, 0.1)
            elif not isinstance(default if written is None else written, ast.Constant):
                yield Origin(file, lines, [], file, name, 0.3)


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.args[1:], *function.args.kwonlyargs]


def _defaults(function: ast.FunctionDef) -> dict[str, ast.expr | None]:
    """Return the defaults of the parameters of a function by name."""
    named = function.args.args[len(function.args.args) - len(function.args.defaults) :]
    pairs = [*zip(named, function.args.defaults, strict=True)]
    pairs += [(a, d) for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d is not None]
    return {argument.arg: default for argument, default in pairs}


def _call_of(scene: Scene, holder: nn.Module, path: str) -> Construction | None:
    """Return the call that built a module: in the constructor around it, else the only one in its file."""
    built = construction_of(scene.run.module, path) if path else None
    if built is None:
        file, lines, function = next(constructors_of(holder))
        tree = tree_of(lines)
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)] if tree is not None else []
        calls = [call for call in calls if callee_name(call) == type(holder).__name__]
        built = Construction(file, lines, calls[0], function) if len(calls) == 1 else None
    return built


def _attributes(scene: Scene, node: ast.AST) -> set[str]:
    """Return the tensors of the running module that an expression is computed from, by way of variables too."""
    holder, site = scene.site.frame.f_locals["self"], scene.site
    before = range(site.code.co_firstlineno, site.line)
    lines = [line for line in site.nodes(ast.Assign) if line.lineno in before]
    waiting, visited, names = [node], set[str](), set[str]()
    while waiting:
        for inner in ast.walk(waiting.pop()):
            if isinstance(inner, ast.Attribute) and getattr(inner.value, "id", "") == "self":
                if isinstance(getattr(holder, inner.attr, None), Tensor):
                    names.add(inner.attr)
            elif isinstance(inner, ast.Name) and inner.id not in visited:
                visited.add(inner.id)
                targets = ((line, n) for line in lines for target in line.targets for n in ast.walk(target))
                waiting += [line.value for line, n in targets if isinstance(n, ast.Name) and n.id == inner.id]
    return names


def _expressions(function: ast.FunctionDef, name: str) -> list[ast.expr]:
    """Return the expressions of a constructor that an attribute is computed from."""
    values = [value for target, value in assignments(function) if getattr(target, "attr", "") == name]
    calls = (call for call in ast.walk(function) if isinstance(call, ast.Call) and len(call.args) > 1)
    named = (call for call in calls if getattr(call.args[0], "value", "") == name)
    values += [call.args[1] for call in named if callee_name(call) in ("register_buffer", "register_parameter")]
    found: list[ast.expr] = []
    while values:
        value = values.pop()
        if value in found:
            continue
        found.append(value)
        names = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        values += [v for target, v in assignments(function) if getattr(target, "id", "") in names]
    return found


def _is_of_halves(node: ast.AST) -> bool:
    """Return whether an expression has a number for each pair of a width: `arange(0, d, 2)`."""
    calls = [call for call in ast.walk(node) if isinstance(call, ast.Call) and callee_name(call) == "arange"]
    return any(len(c.args) > 2 and isinstance(c.args[1], ast.Name) and _is_two(c.args[2]) for c in calls)


def _is_two(node: ast.AST) -> bool:
    return getattr(node, "value", None) == 2


def _replacements(file: str, lines: list[str], nodes: list[ast.expr], name: str, text: str) -> Iterator[Edit]:
    """Yield the edits that replace a name in expressions."""
    for node in nodes:
        whole = {id(n) for call in ast.walk(node) if isinstance(call, ast.Call) for n in call.args}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and inner.id == name:
                yield edit_node(file, lines, inner, text if id(inner) in whole else f"({text})")


class _Rebuild:
    """Change of a module to one whose constructor ran from an edited text of its file, or with another argument."""

    def __init__(self, file: str, after: str, table: str, argument: str = "", formula: str = "", axis: int = -1):
        self._file, self._after, self._table, self._argument, self._formula = file, after, table, argument, formula
        self._axis = axis

    def __call__(self, old: nn.Module, sizes: dict[str, int]) -> nn.Module:
        arguments = arguments_of_constructor(old, self._table, list(sizes.values()))
        if arguments is None:
            raise ValueError(f"the arguments of {type(old).__name__} are not known")
        if self._argument:
            arguments[self._argument] = int(value_of(self._formula, sizes))
        with seeded_draws(0):
            new = Rebinder(self._file, codes_of(self._after, self._file), {}).twin(type(old))(**arguments)
        table = getattr(new, self._table)
        if self._argument and table.shape[self._axis] != arguments[self._argument]:
            raise ValueError(f"`{self._argument}` is not the length of `{self._table}`")
        weights = dict(old.named_parameters()) | dict(old.named_buffers())
        kept = {n: p for n, p in new.named_parameters() if n in weights and weights[n].shape == p.shape}
        with torch.no_grad():
            for name, parameter in kept.items():
                parameter.copy_(weights[name])
        return new.train(old.training)


def arguments_of_constructor(module: nn.Module, table: str, sizes: list[int]) -> dict[str, Any] | None:
    """Return arguments with which the constructor of a module computes the tensor `table` that it has, with parameters
    of the same shapes; None where none are found.

    An argument is the attribute that keeps it, a default, or one of the sizes of tensors of the module.
    """
    if sum(parameter.numel() for parameter in module.parameters()) > MAX_CELLS:
        return None
    tensors = [value for value in vars(module).values() if isinstance(value, Tensor)]
    tensors += [*module.parameters(), *module.buffers()]
    lengths = {length * factor for tensor in tensors for length in tensor.shape for factor in (1, 2)}
    choices = []
    for name, parameter in list(inspect.signature(type(module)).parameters.items()):
        kept = vars(module).get(_attribute_of(module, name), inspect.Parameter.empty)
        known = kept if kept is not inspect.Parameter.empty else parameter.default
        if known is not inspect.Parameter.empty:
            choices.append([known])
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            return None
        else:
            choices.append(sorted({*lengths, *sizes} - {0, 1}))
    names = list(inspect.signature(type(module)).parameters)
    for values in islice(product(*choices), MAX_CONSTRUCTIONS):
        arguments = dict(zip(names, values, strict=True))
        with suppress(Exception), seeded_draws(0):
            if _is_same(type(module)(**arguments), module, table):
                return arguments
    return None


def _attribute_of(module: nn.Module, name: str) -> str:
    """Return the attribute in which a constructor keeps an argument."""
    for _, _, function in constructors_of(module):
        for target, value in assignments(function):
            if isinstance(value, ast.Name) and value.id == name and isinstance(target, ast.Attribute):
                return target.attr
    return name


def _is_same(new: nn.Module, old: nn.Module, table: str) -> bool:
    shapes = [{name: x.shape for name, x in (*m.named_parameters(), *m.named_buffers())} for m in (new, old)]
    ours, theirs = getattr(new, table), getattr(old, table)
    if shapes[0] != shapes[1] or ours.shape != theirs.shape:
        return False
    return isinstance(theirs, nn.Parameter) or torch.equal(ours, theirs)


def cut_what_is_written(error: BaseException, site: FailureSite) -> Iterator[Fix]:
    """Yield the repair of a constructor that writes too many numbers into every second column of a table: the right
    side is cut. The edited constructor runs with its own arguments, and with the width one larger."""
    write, holder = write_of(site), site.frame.f_locals.get("self")
    if write is None or not isinstance(holder, nn.Module) or site.code.co_name != "__init__":
        return
    code = site.code
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    arguments = {name: site.frame.f_locals[name] for name in names}
    for step in steps_of(write):
        length = write.whole.shape[step.axis]
        sizes = [name for name, value in arguments.items() if type(value) is int and value == length]
        half = f"{sizes[0]} // {step.step}" if sizes and step.start == step.step - 1 else ""
        stop = half or f"{write.part.text}.size({step.axis})"
        text = f"{write.values.atom}[{':, ' * step.axis}:{stop}]"
        edit = edit_node(site.file, site.lines, write.values.node, text)
        kind = Rebinder(site.file, codes_of(apply_edits(site.lines, [edit]), site.file), {}).twin(type(holder))
        trials = [arguments, {**arguments, **dict.fromkeys(sizes, length + 1)}]
        with suppress(Exception), seeded_draws(0):
            for each in trials:
                kind(**each)
            ran = tuple({name: at[name] for name in sizes} for at in trials)
            yield Fix(f"write `{text}`", (edit,), ran, (), "the constructor runs to its end")
