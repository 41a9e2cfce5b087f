"""Moves that repair a constructor, by a layer of another size in the line that builds it, or a number of the code."""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any

from torch import Tensor, nn

from tracer.diagnostics.failures.clashes import STRIDES
from tracer.diagnostics.failures.explanation import (
    Construction,
    assignments,
    construction_of,
    constructors_of,
    parameters_of,
)
from tracer.diagnostics.failures.failure_site import callee_name, items_of, source_text, tree_of
from tracer.diagnostics.failures.trials import Candidate, Candidates, Clash, Scene, argument, letters, move, path_of
from tracer.shapes import value_of
from tracer.symbols import notation
from tracer.utils import files
from tracer.utils.files import Edit, add_argument, edit_node, set_argument

SIZE_COST = 2.0
"""What another size of the failed layer costs; that of the layer before it costs more."""
FOREIGN_COST = 1.1
"""What a layer costs besides whose size is one of the input, which no other layer has."""
NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d
"""Norms of channels."""
CONVOLUTIONS = nn.Conv1d, nn.Conv2d, nn.Conv3d
STEPS = 8
"""Most ops between a layer and the one whose output it takes."""


def rebuild_layer(module: nn.Module, **changed: Any) -> nn.Module:
    """Return a module like another with some arguments of its constructor changed; the parameters are new.

    The arguments are read from the attributes of the same name, as modules of PyTorch keep them. TypeError or
    AttributeError for a class that does not.
    """
    arguments: dict[str, Any] = {}
    for name in parameters_of(type(module)):
        if name in changed:
            arguments[name] = changed[name]
        elif name == "bias":
            kept = getattr(module, "bias", getattr(module, "in_proj_bias", None))
            arguments[name] = kept if isinstance(kept, bool) else kept is not None
        elif name in ("add_bias_kv",):
            arguments[name] = getattr(module, "bias_k", None) is not None
        elif (
            hasattr(module, name) and name not in ("device", "dtype") and not isinstance(getattr(module, name), Tensor)
        ):
            arguments[name] = getattr(module, name)
    new = type(module)(**arguments)
    weight = next(iter(module.parameters()), None)
    return (
        new.to(weight.device, weight.dtype if weight.is_floating_point() else None).train(module.training)
        if weight is not None
        else new.train(module.training)
    )


@dataclass(frozen=True)
class LayerSize:
    """Size that a layer should have: the module's path, the parameter of its constructor, the size as a formula,
    and its value in this run."""

    path: str
    name: str
    formula: str
    value: int
    cost: float = 0.0


constructor_move = partial(move, edits="constructor")


@constructor_move(cost=SIZE_COST)
def size_the_layer(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield another size of the layer that failed, and of the one before it."""
    sizes = {letter for symbolic in _weight_shapes(scene) for formula in symbolic for letter in letters(formula)}
    for wanted in _fitting_sizes(scene):
        foreign = set(letters(wanted.formula)) - sizes  # a size of the input that no layer has
        yield from size_candidates(scene, replace(wanted, cost=wanted.cost + FOREIGN_COST) if foreign else wanted)


def _weight_shapes(scene: Scene) -> Iterator[tuple[str, ...]]:
    yield from (shape for name, shape in scene.shapes.symbolic.items() if not name.startswith("input "))


def size_candidates(scene: Scene, wanted: LayerSize) -> Iterator[Candidate]:
    """Yield repairs that give a layer another size, with the edit of its line where that is known."""
    module = scene.run.module.get_submodule(wanted.path)
    shown = _constructor_text(scene, module, wanted)
    message = f"build `{wanted.path}` as `{shown}`"

    def rebuild(old: nn.Module, sizes: dict[str, int]) -> nn.Module:
        return rebuild_layer(old, **{wanted.name: int(value_of(wanted.formula, sizes)) if sizes else wanted.value})

    built = construction_of(scene.run.module, wanted.path)
    node = built.argument(type(module), wanted.name) if built else None
    if built is None or node is None:
        yield Candidate(message, wanted.cost, (), wanted.path, rebuild, family=message)
        return
    if scene.run.rebuild is not None and built.file == scene.run.file:
        for number, text in enumerate(_texts(built, wanted)):
            edit = edit_node(built.file, built.lines, node, text)
            yield Candidate(message, wanted.cost + number / 100, (edit,), family=message)
        return
    edit = edit_node(built.file, built.lines, node, _text_of_value(scene, built, wanted))
    yield Candidate(message, wanted.cost, (edit,), wanted.path, rebuild, family=message)


def _constructor_text(scene: Scene, module: nn.Module, wanted: LayerSize) -> str:
    """Return a layer as it is to be built: `Linear(3·D, 8)`."""
    names = {
        nn.Linear: ("in_features", "out_features"),
        nn.Embedding: ("num_embeddings", "embedding_dim"),
        nn.LayerNorm: ("normalized_shape",),
        nn.GroupNorm: ("num_groups", "num_channels"),
    }
    kinds = next((value for kind, value in names.items() if isinstance(module, kind)), (wanted.name,))
    axes = {"in_features": 1, "out_features": 0, "num_embeddings": 0, "embedding_dim": 1}
    weight = getattr(module, "weight", None)
    known = {name: scene.formula(weight, axes[name]) for name in kinds if name in axes and isinstance(weight, Tensor)}
    sizes = [
        notation.text(wanted.formula if name == wanted.name else known.get(name) or _plain(getattr(module, name, "")))
        for name in kinds
    ]
    more = ", …" if kinds == (wanted.name,) and wanted.name not in ("normalized_shape", "num_features") else ""
    return f"{type(module).__name__}({', '.join(sizes)}{more})"


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _fitting_sizes(scene: Scene) -> Iterator[LayerSize]:
    """Yield the sizes with which the failed layer, or the one before it, would fit."""
    module, x = scene.module, _input(scene)
    if module is None or not scene.is_module_call or not isinstance(x, Tensor) or not x.dim():
        return
    path = scene.path

    def at(name: str, axis: int) -> Iterator[LayerSize]:
        if -x.dim() <= axis < x.dim():
            yield LayerSize(path, name, scene.formula(x, axis), x.shape[axis])

    if isinstance(module, nn.Linear):
        yield from at("in_features", -1)
        yield from _before(scene, x, -1, module.in_features, scene.formula(module.weight, 1))
    elif isinstance(module, CONVOLUTIONS):
        axis = x.dim() - module.weight.dim() + 1
        yield from at("in_channels", axis)
        yield from _before(scene, x, axis, module.in_channels, str(module.in_channels))
    elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) == 1:
        yield from at("normalized_shape", -1)
        yield from _before(scene, x, -1, module.normalized_shape[0], str(module.normalized_shape[0]))
    elif isinstance(module, NORMS):
        yield from at("num_features", 1)
    elif isinstance(module, nn.GroupNorm) and x.dim() > 1:
        if x.shape[1] != module.num_channels:
            yield from at("num_channels", 1)
        else:
            for groups in range(module.num_groups - 1, 0, -1):
                if module.num_channels % groups == 0:
                    yield LayerSize(path, "num_groups", str(groups), groups)
                    break
    elif isinstance(module, nn.RNNBase):
        yield from at("input_size", -1)
    elif (
        isinstance(module, nn.Embedding)
        and not x.is_floating_point()
        and not x.is_meta
        and x.numel()
        and int(x.min()) >= 0
    ):
        rows = int(x.max()) + 1
        if rows > module.num_embeddings:
            yield from _rows(scene, path, x, rows)
    elif isinstance(module, nn.MultiheadAttention) and x.shape[-1] != module.embed_dim:
        yield from at("embed_dim", -1)


def _rows(scene: Scene, path: str, ids: Tensor, rows: int) -> Iterator[LayerSize]:
    """Yield the number of rows that a table needs: the number, and the size of the input that is the same, as for
    positions."""
    yield LayerSize(path, "num_embeddings", str(rows), rows)
    for axis in range(ids.dim()):
        if ids.shape[axis] == rows and scene.formula(ids, axis) != str(rows):
            yield LayerSize(path, "num_embeddings", scene.formula(ids, axis), rows, 0.2)


def _input(scene: Scene) -> Any:
    """Return the tensor that the failed layer took."""
    if scene.call is None:  # refused before
        return next(iter(scene.arguments), None)
    return argument(scene.call, 0, "input", argument(scene.call, 0, "query"))


def _before(scene: Scene, x: Tensor, axis: int, value: int, formula: str) -> Iterator[LayerSize]:
    """Yield the size that the preceding layer would need."""
    maker, ops = scene.maker(x), scene.run.recording.ops
    size = x.shape[axis]
    for _ in range(STEPS):
        if not isinstance(maker, int) or maker >= len(ops):
            return
        op = ops[maker]
        module = _submodule(scene.run.module, op.module)
        name = "out_features" if isinstance(module, nn.Linear) else "out_channels"
        if isinstance(module, (nn.Linear, *CONVOLUTIONS)):
            if getattr(module, name) == size and op.module != scene.path:
                yield LayerSize(op.module, name, formula, value, 0.5)
            return
        maker = next((tensor[2] for tensor in op.inputs if size in tensor[0]), None)


def _submodule(root: nn.Module, path: str) -> nn.Module | None:
    """Return the module at a path inside another; None for "", and where there is none."""
    return dict(root.named_modules(remove_duplicate=False)).get(path) if path else None


@constructor_move(cost=0.9)
def exchange_batch_first(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the repair that takes the batch along the other axis, in all layers that the failed line calls."""
    called = list(scene.site.modules[scene.site.own :])
    layer = next(
        (module for module in reversed(called) if isinstance(getattr(module, "batch_first", None), bool)), None
    )
    if layer is None:
        return
    value, path = not layer.batch_first, path_of(scene.run.module, called[0])
    edits, name = _batch_first_edit(scene, called, value)

    def exchange(old: nn.Module, sizes: dict[str, int]) -> nn.Module:
        for inner in old.modules():
            if hasattr(inner, "batch_first"):
                inner.batch_first = value
        return old

    where = f"`{path}`" if name == type(called[0]).__name__ or not name else f"the `{name}` of `{path}`"
    cost = 0.0 if clash.kind in ("mask", "refusal") else 0.9
    yield Candidate(f"build {where} with `batch_first={value}`", cost, edits, path, exchange)


def _batch_first_edit(scene: Scene, called: list[nn.Module], value: bool) -> tuple[tuple[Edit, ...], str]:
    """Return the edit of the call that builds one of these modules, the outermost that takes `batch_first`, and the
    name of its class."""
    holders = [module for module in scene.site.modules[: scene.site.own] if not isinstance(module, nn.Sequential)]
    for module in called:
        if "batch_first" not in parameters_of(type(module)):
            continue
        for holder in reversed(holders):
            for file, lines, function in constructors_of(holder):
                name = type(module).__name__
                calls = [n for n in ast.walk(function) if isinstance(n, ast.Call) and callee_name(n) == name]
                if len(calls) == 1:
                    return (set_argument(file, lines, calls[0], "batch_first", str(value)),), name
    return (), ""


@constructor_move(cost=1.5)
def widen_keys(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield attention whose keys and values are of another width than its queries."""
    module, call = scene.module, scene.call
    if not isinstance(module, nn.MultiheadAttention) or call is None or not scene.path:
        return
    keys, values = argument(call, 1, "key"), argument(call, 2, "value")
    if not isinstance(keys, Tensor) or not isinstance(values, Tensor) or keys.shape[-1] == module.kdim:
        return
    widths = {"kdim": keys.shape[-1], "vdim": values.shape[-1]}
    built = construction_of(scene.run.module, scene.path)
    text = ", ".join(f"{name}={width}" for name, width in widths.items())
    edits: tuple[Edit, ...] = ()
    if built is not None and not {keyword.arg for keyword in built.call.keywords} & {"kdim", "vdim"}:
        edits = (add_argument(built.file, built.lines, built.call, text),)

    def widen(old: nn.Module, sizes: dict[str, int]) -> nn.Module:
        return rebuild_layer(old, **widths)

    yield Candidate(f"build `{scene.path}` with `{text}`", 0.0, edits, scene.path, widen)


def _layer_of(scene: Scene, tensor: Tensor) -> tuple[str, nn.Module | None]:
    """Return the path of the module that computed a tensor, and the module; None where there is none."""
    maker = scene.maker(tensor)
    path = scene.run.recording.ops[maker].module if isinstance(maker, int) else ""
    return path, _submodule(scene.run.module, path)


@constructor_move("broadcast", cost=SIZE_COST)
def size_the_layer_of_a_sum(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield another size of a layer whose output is to be as wide as what it is added to."""
    tensors = scene.tensors
    for tensor in tensors:
        path, module = _layer_of(scene, tensor)
        other = next((t for t in tensors if t is not tensor and t.dim() == tensor.dim()), None)
        axis = {nn.Linear: -1}.get(type(module), 1 - tensor.dim() if isinstance(module, CONVOLUTIONS) else 0)
        if not axis or other is None or clash.axes.get(id(tensor)) != (axis,):
            continue
        name = "out_features" if isinstance(module, nn.Linear) else "out_channels"
        yield from size_candidates(scene, LayerSize(path, name, scene.formula(other, axis), other.shape[axis]))


@constructor_move("broadcast", cost=1.5)
def pad_a_convolution(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the padding with which a convolution keeps the size of its picture, for the sum of both."""
    for tensor in scene.tensors:
        path, module = _layer_of(scene, tensor)
        if not isinstance(module, CONVOLUTIONS) or set(module.stride) != {1}:
            continue
        if id(tensor) not in clash.axes:
            continue
        sizes = {d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)}
        if len(sizes) != 1 or (whole := sizes.pop()) % 2 or module.padding == (whole // 2,) * len(module.stride):
            continue
        padding = whole // 2
        built = construction_of(scene.run.module, path)
        edits = (set_argument(built.file, built.lines, built.call, "padding", str(padding)),) if built else ()

        def pad(old: nn.Module, at: dict[str, int], padding: int = padding) -> nn.Module:
            return rebuild_layer(old, padding=padding)

        yield Candidate(f"build `{path}` with `padding={padding}`", 0.0, edits, path, pad)


@constructor_move("broadcast", cost=1.8)
def step_by_one(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the stride with which a convolution keeps the size of its picture, for the sum of both."""
    for tensor in scene.tensors:
        path, module = _layer_of(scene, tensor)
        if not isinstance(module, CONVOLUTIONS) or set(module.stride) == {1} or id(tensor) not in clash.axes:
            continue
        built = construction_of(scene.run.module, path)
        edits = (set_argument(built.file, built.lines, built.call, "stride", "1"),) if built else ()

        def step(old: nn.Module, at: dict[str, int]) -> nn.Module:
            return rebuild_layer(old, stride=1)

        yield Candidate(f"build `{path}` with `stride=1`", 0.0, edits, path, step)


@constructor_move("broadcast", "join", cost=1.9)
def size_a_table(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield a parameter of the size that it meets, such as a table of positions with one token more."""
    tensors, parameters = scene.tensors, dict(scene.run.module.named_parameters())
    for tensor in tensors:
        name = _table_of(scene, tensor)
        other = next((t for t in tensors if t is not tensor and t.dim() >= tensor.dim()), None)
        axes = clash.axes.get(id(tensor), ())
        if name not in parameters or other is None or len(axes) != 1:
            continue
        place = axes[0] % tensor.dim() - tensor.dim()  # counted from the last, as axes are added before the first
        axis = parameters[name].dim() + place
        if axis >= 0 and parameters[name].shape[axis] == tensor.shape[place]:
            yield from _table_candidates(scene, name, axis, scene.formula(other, place), other.shape[place])


def _table_of(scene: Scene, tensor: Tensor) -> str:
    """Return the name of the parameter that a tensor is, or is a layout of, such as a slice; "" for none."""
    maker, ops = scene.maker(tensor), scene.run.recording.ops
    for _ in range(STEPS):
        if isinstance(maker, str):
            return maker
        if maker >= len(ops) or not ops[maker].layout or not ops[maker].inputs:
            return ""
        maker = ops[maker].inputs[0][2]
    return ""


def _table_candidates(scene: Scene, name: str, axis: int, formula: str, value: int) -> Iterator[Candidate]:
    path, _, attribute = name.rpartition(".")
    holder = scene.run.module.get_submodule(path)
    message = f"build `{name}` with {notation.text(formula)} along axis {axis}"
    table_length = getattr(holder, attribute).shape[axis]

    def rebuild(old: nn.Module, sizes: dict[str, int]) -> nn.Module:
        table = getattr(old, attribute)
        shape = list(table.shape)
        shape[axis] = int(value_of(formula, sizes)) if sizes else value
        old.register_parameter(attribute, nn.Parameter(table.new_zeros(shape)))
        return old

    for file, lines, function in constructors_of(holder):
        for target, assigned in assignments(function):
            if not (isinstance(target, ast.Attribute) and target.attr == attribute):
                continue
            sizes = _shape_nodes(assigned)
            if axis >= len(sizes):
                continue
            before = source_text(lines, sizes[axis])
            if scene.run.rebuild is not None and scene.run.file == file:
                for number, text in enumerate((f"{before} + 1", f"{before} + 2", f"{before} - 1", str(value))):
                    edit = edit_node(file, lines, sizes[axis], text)
                    yield Candidate(message, number / 50, (edit,), family=message)
                return
            one_more = value == table_length + 1 and not before.isdigit()
            edit = edit_node(file, lines, sizes[axis], f"{before} + 1" if one_more else str(value))
            yield Candidate(message, 0.0, (edit,), path, rebuild, family=message)
            return


def _shape_nodes(value: ast.expr) -> list[ast.expr]:
    """Return the sizes in the call that builds a parameter: those of `nn.Parameter(torch.zeros(1, N, D))`."""
    for node in ast.walk(value):
        if isinstance(node, ast.Call) and callee_name(node) in ("zeros", "randn", "empty", "ones", "rand"):
            return items_of(node.args)
    return []


@constructor_move("refusal", cost=1.2)
def chain_a_list(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield the `Sequential` that a called list of modules has to be."""
    if not isinstance(scene.module, nn.ModuleList) or not scene.path:
        return
    built = construction_of(scene.run.module, scene.path)
    if built is None or len(built.call.args) != 1:
        return
    function, items = (source_text(built.lines, node) for node in (built.call.func, built.call.args[0]))
    items = items if isinstance(built.call.args[0], (ast.List, ast.ListComp, ast.Name)) else f"({items})"
    name = function.replace("ModuleList", "Sequential")
    edit = edit_node(built.file, built.lines, built.call, f"{name}(*{items})")

    def chain(old: nn.Module, sizes: dict[str, int]) -> nn.Module:
        return nn.Sequential(*old.children())

    yield Candidate(
        f"build `{scene.path}` as `Sequential`, which calls one after the other", 0.0, (edit,), scene.path, chain
    )


def _texts(built: Construction, wanted: LayerSize) -> list[str]:
    """Return texts for the size in the line that builds the layer, likely ones first: arguments of other layers of the
    same constructor, products and quotients of its own, and the number."""
    names = [argument.arg for argument in (*built.function.args.args[1:], *built.function.args.kwonlyargs)]
    if wanted.formula == str(wanted.value):
        return [wanted.formula]
    texts = [_code(wanted.formula)] if set(letters(wanted.formula)) <= set(names) else []
    texts += [text for _, _, text in _sizes_of_layers(built)]
    for name in names:
        texts += [name, *(f"{k} * {name}" for k in range(2, 9)), *(f"{name} // {k}" for k in (2, 3, 4)), f"{name} + 1"]
        texts += [f"{name} {sign} {other}" for sign in ("*", "//", "+") for other in names if other != name]
    return [*dict.fromkeys(texts), str(wanted.value)]


def _text_of_value(scene: Scene, built: Construction, wanted: LayerSize) -> str:
    """Return a text for the size in the line that builds the layer: the argument of another layer for the same size,
    else the number."""
    holder = scene.run.module.get_submodule(wanted.path.rpartition(".")[0])
    for name, parameter, text in _sizes_of_layers(built):
        layer = getattr(holder, name, None) if name else None
        if isinstance(layer, nn.Module) and getattr(layer, parameter, None) == wanted.value:
            return text
    return str(wanted.value)


def _sizes_of_layers(built: Construction) -> Iterator[tuple[str, str, str]]:
    """Yield the sizes in a constructor that are written with names: the attribute that holds a layer, the parameter of
    the layer, the text."""
    attributes = dict(_layers_of(built.function))
    for node in ast.walk(built.function):
        kind = getattr(nn, callee_name(node), None) if isinstance(node, ast.Call) else None
        if not inspect.isclass(kind) or not isinstance(node, ast.Call):
            continue
        names = parameters_of(kind) if issubclass(kind, nn.Module) else list(inspect.signature(kind).parameters)
        arguments = [*zip(names, node.args, strict=False), *((k.arg or "", k.value) for k in node.keywords)]
        yield from ((attributes.get(node, ""), name, ast.unparse(arg)) for name, arg in arguments if _is_size(arg))


def _layers_of(function: ast.FunctionDef) -> Iterator[tuple[ast.AST, str]]:
    """Yield the calls that build the layers of a constructor, with the attribute that holds each, the first of many."""
    for target, value in assignments(function):
        layer, holder = value, target
        if isinstance(value, (ast.GeneratorExp, ast.ListComp)) and isinstance(target, ast.Tuple) and target.elts:
            layer, holder = value.elt, target.elts[0]
        if isinstance(holder, ast.Attribute):
            yield layer, holder.attr


def _is_size(node: ast.expr) -> bool:
    return all(
        isinstance(n, (ast.BinOp, ast.Name, ast.Constant, ast.operator, ast.Load, ast.Attribute))
        for n in ast.walk(node)
    ) and any(isinstance(n, ast.Name) for n in ast.walk(node))


def _code(formula: str) -> str:
    """Return a formula as Python: `3*D` gives `3 * D`."""
    return ast.unparse(files.parse(formula.replace("/", "//")))


# Repairs of a number: a size of the factory, a literal in a call on the way to the error, an attribute of a module.
#
# This is how heads that do not divide the width are repaired.

REACH = 4
"""How far from a number others are tried, besides its double and its half."""


def number_move(cost: float) -> Callable[[Candidates], Candidates]:
    """Register a function that yields other numbers as a move, for failures that depend on numbers: a view of a tensor
    whose memory is in another order does not."""

    def register(candidates: Candidates) -> Candidates:
        @move("view", "norm", "attention", "expand", "refusal", cost=cost, edits="number")
        def numbers(scene: Scene, clash: Clash) -> Iterator[Candidate]:
            return iter(()) if STRIDES in str(scene.error) else candidates(scene, clash)

        return candidates

    return register


def near(value: int) -> Iterator[tuple[int, float]]:
    """Yield whole numbers near one, the nearest first, each with what it costs besides."""
    around = {*range(max(1, value - REACH), value + REACH + 1), value * 2, value // 2} - {0, value}
    yield from ((v, abs(v - value) / (50 * value)) for v in sorted(around, key=lambda v: (abs(v - value), -v)))


@number_move(cost=1.6)
def choose_a_size(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield other values of the sizes of a factory, except the length of an input, which is what it is."""
    run = scene.run
    if run.rebuild is None or run.sizes is None:
        return
    lines = linecache.getlines(run.file)
    tree = files.parse("".join(lines))
    used = _names_of_error(scene)
    of_inputs, of_weights = set[str](), set[str]()
    for name, shape in scene.shapes.symbolic.items():
        (of_inputs if name.startswith("input ") else of_weights).update(*map(letters, shape))
    for name, value in run.sizes.items():
        if name == "B" or name in of_inputs - of_weights:
            continue
        nodes = list(_defaults(tree, name, value, set(run.sizes)))
        for other, cost in near(value):
            edits = tuple(edit_node(run.file, lines, node, str(other)) for node in nodes[:1])
            likely = 0.0 if value in used or name in used else 0.5
            cost += likely + 0.4 * (value == max(run.sizes.values()))
            yield Candidate(f"choose {name}={other}", cost, edits, sizes=((name, other),), family="number")


def _defaults(tree: ast.Module, name: str, value: int, sizes: set[str]) -> Iterator[ast.expr]:
    """Yield the default of a parameter of that name and value, in the factory that takes all these sizes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and sizes <= {argument.arg for argument in node.args.args}:
            named = node.args.args[len(node.args.args) - len(node.args.defaults) :]
            for argument, default in zip(named, node.args.defaults, strict=True):
                if argument.arg == name and isinstance(default, ast.Constant) and default.value == value:
                    yield default


def _names_of_error(scene: Scene) -> set[object]:
    """Return the names and the whole numbers in the failed line."""
    site, used = scene.site, set[object]()
    for node in site.nodes_of_line(ast.Name, ast.Attribute):
        used.add(site.text_of(node))
        value = site.value(node)
        if isinstance(value, int) and not isinstance(value, bool):
            used.add(value)
    return used


@number_move(cost=1.7)
def write_another_number(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield other numbers in the calls that led to the error, such as `Attention(D, 3)`."""
    for frame in scene.site.frames:
        for node in _calls(frame):
            for value in (*node.args, *(keyword.value for keyword in node.keywords)):
                if isinstance(value, ast.Constant) and type(value.value) is int and value.value > 1:
                    file = frame.f_code.co_filename
                    lines = linecache.getlines(file)
                    text = source_text(lines, node)
                    for other, cost in near(value.value):
                        edit = edit_node(file, lines, value, str(other))
                        message = f"write {other} in the place of {value.value} in `{text}`"
                        yield Candidate(message, cost, (edit,), family="number")


def _calls(frame: FrameType) -> Iterator[ast.Call]:
    tree = tree_of(linecache.getlines(frame.f_code.co_filename))
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and frame.f_lineno in files.lines(node):
            yield node


@number_move(cost=1.8)
def choose_an_attribute(scene: Scene, clash: Clash) -> Iterator[Candidate]:
    """Yield other values of the whole numbers that a module holds and the failed line reads, such as `self.heads`."""
    site = scene.site
    if not site.own:
        return
    module = site.modules[site.own - 1]
    path = path_of(scene.run.module, module)
    names = {
        n.attr
        for function in site.nodes_around(ast.FunctionDef)
        for n in ast.walk(function)
        if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "self"
    }
    for name in sorted(names):
        value = vars(module).get(name)
        if type(value) is not int or value < 2:
            continue
        for other, cost in near(value):

            def change(old: nn.Module, sizes: dict[str, int], name: str = name, other: int = other) -> nn.Module:
                new = copy.copy(old)
                vars(new)[name] = other
                return new

            where = path or type(module).__name__
            yield Candidate(f"choose `{name}` = {other} in `{where}`", cost, (), path, change, family="number")
