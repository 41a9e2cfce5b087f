"""Rules on how a model holds its modules: one in several places, and weights that are no parameters of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from tracer.capture.calls import Call
from tracer.capture.modes import Function
from tracer.diagnostics.findings.run_view import Evidence, rule
from tracer.diagnostics.findings.second_runs import OUTPUT_TOLERANCE, movement_with

if TYPE_CHECKING:
    from tracer.diagnostics.findings.run_view import RunView


# Modules that stand in several places, each of which goes on from the result of the one before.


class SharedModule(NamedTuple):
    """A module in several places of a model: its paths, how many parameters it has, and the first calls of its uses, of
    which each reads what the one before computed."""

    paths: list[str]
    size: int
    uses: list[Call]


def shared_modules(run: RunView) -> Iterator[SharedModule]:
    """Yield the modules with parameters that stand at several places of lists, and are used one after another."""
    if run.replay is None or isinstance(run.replay.module, Function):
        return
    places: dict[int, tuple[nn.Module, list[str]]] = {}
    for path, module in run.replay.module.named_modules(remove_duplicate=False):
        places.setdefault(id(module), (module, []))[1].append(path)
    known: list[str] = []
    for module, paths in places.values():
        alike = [path for path in paths if _pattern(path) == _pattern(paths[0])]
        size = sum(parameter.numel() for parameter in module.parameters())
        if len(alike) < 2 or not size or any(path.startswith(f"{other}.") for path in paths[:1] for other in known):
            continue
        known += alike
        uses = _uses_in_a_row(run, alike)
        if len(uses) > 1:
            yield SharedModule(alike, size, uses)


def shared_norms(run: RunView) -> Iterator[SharedModule]:
    """Yield the norms with parameters that one forward calls at several lines, one after another."""
    if run.replay is None or isinstance(run.replay.module, Function):
        return
    for path, module in run.replay.module.named_modules():
        weight = getattr(module, "weight", None)
        if "norm" not in type(module).__name__.lower() or not isinstance(weight, nn.Parameter):
            continue
        uses = _uses_in_a_row(run, [path])
        sources = [run.trace.ops[use.first].source for use in uses]
        lines = [(source.file, source.line) for source in sources if source is not None]
        results = {ref.key for use in uses for ref in use.outputs}
        again = any(
            run.graph.root(run.graph.inputs[run.graph.producer[use.outputs[0].key]][0].key) in results for use in uses
        )
        if len(lines) > 1 and len(set(lines)) == len(lines) and not again:
            yield SharedModule([path], sum(parameter.numel() for parameter in module.parameters()), uses)


def _pattern(path: str) -> str:
    """Return a path with a mark in the place of each number."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "#", path)


def _uses_in_a_row(run: RunView, paths: list[str]) -> list[Call]:
    """Return the first call of each use of a module, if each use reads what the one before computed; none if not."""
    graph, uses = run.graph, dict[int, list[int]]()
    for index, call in enumerate(graph.calls):
        if any(call.module == path or call.module.startswith(f"{path}.") for path in paths):
            uses.setdefault(call.call, []).append(index)
    groups = [uses[number] for number in sorted(uses)]
    for before, after in pairwise(groups):
        results = {key for index in before for ref in graph.calls[index].outputs for key in graph.descendants(ref.key)}
        if not any(ref.key in results for index in after for ref in graph.inputs[index]):
            return []
    return [graph.calls[group[0]] for group in groups]


@rule(
    "module shared",
    lambda run: (*shared_modules(run), *shared_norms(run)),
    "{places}: its {size:,} parameters are used {count} times in a row, each time on what it computed"
    " before, and all {count} learn the same. Separate ones would have {all:,} parameters.",
    "Build one for each place: `nn.ModuleList(Layer() for _ in range(n))`, or `copy.deepcopy(layer)`. A model that"
    " shares its layers on purpose calls one in a loop.",
)
def find_shared_module(run: RunView, shared: SharedModule) -> Evidence:
    """Find one module in several places of a list, as by `[layer] * n`."""
    *others, last = [f"`{path}`" for path in shared.paths]
    count = len(shared.uses)
    places = f"{', '.join(others)} and {last} are one module" if others else f"{last} is read at {count} lines"
    return Evidence(
        *shared.uses, at=shared.uses[0].first, places=places, size=shared.size, count=count,
        all=shared.size * count,
        intent=run.intent_at("module shared", "", shared.paths[0]),
    )  # fmt: skip


# Weights that the model reads, and that are none of its parameters.

LIST_OF_MODULES = "Hold modules in `nn.ModuleList` or `nn.ModuleDict`, and tensors in `nn.ParameterList`."
PLAIN_TENSOR = "Make it a parameter: `self.{name} = nn.Parameter(…)`; or a buffer, if nothing is to train it."
RANDOM_NUMBERS = 64
"""Numbers of a tensor from which on random ones can be told from a table."""
RANDOM_CORRELATION = 0.3
"""Largest correlation of neighbours in random numbers."""


class Unregistered(NamedTuple):
    """Weights that a model holds beside its parameters: the name of its attribute, what they are, their tensors, how
    far outputs move with them, and the repair."""

    name: str
    what: str
    tensors: list[torch.Tensor]
    share: float
    repair: str


OF_EVERY_MODULE = frozenset(vars(nn.Module()))
"""Attributes that every module has, those that hold what is registered among them."""


def unregistered_weights(run: RunView) -> Iterator[Unregistered]:
    """Yield the weights in plain lists and attributes of modules with which an output moves."""
    if run.replay is None or isinstance(run.replay.module, Function):
        return
    module = run.replay.module
    known = {id(part) for part in module.modules()}
    named = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name in OF_EVERY_MODULE or name.startswith("__"):
                continue
            own = f"{path}.{name}" if path else name
            modules, tensors = _contents(value, set(known))
            weights = [
                each for held in modules for each in held.parameters() if each.requires_grad and id(each) not in named
            ]
            tensors = [each for each in tensors if id(each) not in named]
            for found, what, repair in (
                (weights, "modules in a plain list or dictionary", LIST_OF_MODULES),
                (tensors, "a plain tensor", PLAIN_TENSOR.format(name=name)),
            ):
                if found and (share := movement_with(run, found)) > OUTPUT_TOLERANCE:
                    yield Unregistered(own, what, found, share, repair)


def _contents(value: Any, visited: set[int]) -> tuple[list[nn.Module], list[torch.Tensor]]:
    """Return the modules in plain containers, and the tensors that are to be trained or are random."""
    if id(value) in visited:
        return [], []
    visited.add(id(value))
    if isinstance(value, nn.Module):
        return [value], []
    if isinstance(value, torch.Tensor):
        return [], [value] if value.requires_grad or _is_random(value) else []
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    held = [_contents(item, visited) for item in items]
    return [each for modules, _ in held for each in modules], [each for _, tensors in held for each in tensors]


def _is_random(tensor: torch.Tensor) -> bool:
    """Return whether the numbers of a tensor are random: of many values, and neighbours along no axis are alike."""
    if tensor.is_meta or not tensor.is_floating_point() or tensor.numel() < RANDOM_NUMBERS:
        return False
    values = tensor.detach().double().squeeze()
    centred = values - values.mean()
    power = float(centred.square().mean())
    if not power > 0 or len(values.unique()) < 0.9 * values.numel():
        return False
    axes = [axis for axis, size in enumerate(values.shape) if size > 1]
    return all(
        abs(float((centred.narrow(axis, 1, size - 1) * centred.narrow(axis, 0, size - 1)).mean())) / power
        < RANDOM_CORRELATION
        for axis in axes
        for size in (values.shape[axis],)
    )


@rule(
    "parameter unregistered",
    unregistered_weights,
    "`{name}` is {what}, whose {count:,} numbers are no parameters of the model: no optimizer trains them, no"
    " checkpoint holds them, and `.to()` leaves them where they are. With other numbers in them, the output of a second"
    " run moves by {share:.2g} of the largest value.",
    "{repair}",
    runs_again=True,
)
def find_unregistered(run: RunView, weights: Unregistered) -> Evidence:
    """Find weights that an output depends on and that are no parameters of the model."""
    shapes = [tuple(tensor.shape) for tensor in weights.tensors]
    graph = run.graph
    readers = [
        call
        for index, call in enumerate(graph.calls)
        if graph.is_live(index)
        and any(ref.key.startswith("constant ") and ref.shape in shapes for ref in graph.inputs[index])
    ]
    return Evidence(
        *readers[:1], name=weights.name, what=weights.what, count=sum(t.numel() for t in weights.tensors),
        share=weights.share, repair=weights.repair,
        intent=run.intent_at("parameter unregistered", "", weights.name),
    )  # fmt: skip
