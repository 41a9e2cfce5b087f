"""The sizes of probes, and the inputs of each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from math import prod

import torch

from tracer.capture import Recording
from tracer.capture.modes import Function
from tracer.shapes import UNCOMPARED_NOTE, PartialSolution, Solution, Vocabulary
from tracer.shapes.variation import CONSTANTS, parameters, probe_kind, probe_kinds, shadow_copy, without_values
from tracer.symbols import cost
from tracer.utils.errors import quote, reason

# Sizes of the probes of a module.

SIZES = (
    (15, 20, 8, 25, 9),
    (20, 10, 33, 27, 18),
    (17, 47, 61, 24, 43),
    (19, 45, 36, 26, 54),
    (37, 44, 51, 9, 25),
    (50, 21, 16, 35, 60),
    (11, 37, 30, 16, 47),
    (40, 59, 15, 45, 8),
)
"""By symbol, the sizes of four probes that solve and of one that is predicted. Divided by 2, 3 and 4 they leave 0, 1
and one less; a test checks that no two expressions agree in them."""

SMALL_SIZES = (2, 3, 4, 5)
"""By symbol, a size below those of all probes: what changes at a threshold in between shows there."""

LARGE_SIZES = (67, 71, 73, 79)
"""By symbol, a size above those of all probes; two are as large in one run, and a batch is of two."""

HEAVY_SIZES = ((3, 5, 2, 7, 4), (5, 2, 9, 4, 7), (7, 4, 11, 6, 3), (4, 7, 3, 10, 9), (9, 11, 6, 3, 5))
"""The same for modules whose probes are slow and need real values."""

Choice = Callable[[int, int], tuple[int, ...]]


def choose_sizes(sizes: dict[str, int], ways: dict[str, Choice] | None = None) -> list[dict[str, int]]:
    """Return the sizes of all probes, each symbol's chosen in its own way, by default from `SIZES`."""
    columns = [((ways or {}).get(name, _any))(size, i) for i, (name, size) in enumerate(sizes.items())]
    return [dict(zip(sizes, row, strict=True)) for row in zip(*columns, strict=True)]


def candidate_probes(
    vocabulary: Vocabulary, sizes: dict[str, int], heavy: bool = False
) -> Iterator[tuple[Vocabulary, list[dict[str, int]]]]:
    """Yield ways to choose sizes, in order of preference: a module may not run at all sizes.

    After `SIZES`, each symbol has the first of three kinds at which the module runs while all other sizes stay: any;
    near its size, since a size that is halved five times can't be small, and a table of positions has an end; or
    multiples of its largest power of two, of 3 or of 5, since patches have to fit. A size at which it runs at none of
    these stays, and is not a symbol. A heavy module runs at `HEAVY_SIZES` only.
    """
    if heavy:
        yield vocabulary, choose_sizes(sizes, dict.fromkeys(sizes, _few))
        return
    beyond = small_sizes(sizes), (large_sizes(sizes),), *unit_sizes(sizes)
    yield replace(vocabulary, beyond=beyond), choose_sizes(sizes)
    ways = {name: _first_that_runs(vocabulary, sizes, name, i) for i, name in enumerate(sizes)}
    if set(ways.values()) == {_any}:
        return
    left = [name for name, choose in ways.items() if choose is _same]
    if len(left) < len(ways):
        names = tuple(name for name in vocabulary.names if name not in left)
        note = f"no symbols for {', '.join(left)}: the model did not run at the other sizes tried" if left else ""
        least = {name: min(choose(size, 0)) for (name, size), choose in zip(sizes.items(), ways.values(), strict=True)}
        free = [name for name, choose in ways.items() if choose is _any]
        small = tuple({**least, **{name: at[name] for name in free}} for at in small_sizes(sizes)[: len(free)])
        yield replace(vocabulary, names=names, note=note, beyond=(small,)), choose_sizes(sizes, ways)


def small_sizes(sizes: dict[str, int]) -> tuple[dict[str, int], ...]:
    """Return sizes below those of `SIZES`, in order of preference: the smallest, and half of those of the run."""
    least = {name: SMALL_SIZES[i % len(SMALL_SIZES)] for i, name in enumerate(sizes)}
    return least, {name: max(size // 2, least[name]) for name, size in sizes.items()}


def unit_sizes(sizes: dict[str, int]) -> Iterator[tuple[dict[str, int], ...]]:
    """Yield sizes of which one is 1, in order of preference, for the batch and for the last size: an axis of one is
    dropped by `squeeze`, and broadcast."""
    for name in dict.fromkeys(name for name in ("B", [*sizes][-1]) if name in sizes):
        yield tuple({**at, name: 1} for at in (small_sizes(sizes)[0], sizes))


def large_sizes(sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes above those of `SIZES` and of the run, at a small batch."""
    small = small_sizes(sizes)[0] | {"B": 2}
    long = [name for name in sizes if name != "B"][-2:] or [*sizes]
    large = {name: max(LARGE_SIZES[i], sizes[name] + i + 1) for i, name in enumerate(long)}
    return {name: large.get(name, small[name]) for name in sizes}


def _first_that_runs(vocabulary: Vocabulary, sizes: dict[str, int], name: str, position: int) -> Choice:
    for choose in SEARCHED:
        column = choose(sizes[name], position)
        try:
            for size in sorted({*column}, key=lambda size: (size not in (min(column), max(column)), size)):
                vocabulary.probe({**sizes, name: size}, primitives=False)
        except Exception:  # a size that the module does not take: others it may
            continue
        return choose
    return _same


def _same(size: int, position: int) -> tuple[int, ...]:
    return (size,) * 5


def _of_table(table: tuple[tuple[int, ...], ...], size: int, position: int) -> tuple[int, ...]:
    turn, row = divmod(position, len(table))
    return tuple(value + turn for value in table[row])


_any, _few = partial(_of_table, SIZES), partial(_of_table, HEAVY_SIZES)


def _near(size: int, position: int) -> tuple[int, ...]:
    low = size // 2
    values = (size - 1, low + 1, size - 2, low + low // 2, size - 3, low + 2, low)
    turn = position % 3
    return tuple(max(1, value) for value in values[turn : turn + 5])


def _multiples_of(unit: int, size: int, position: int) -> tuple[int, ...]:
    """Return multiples of a unit, never the unit itself, where one part would run other ops."""
    times = [k for k in (2, 3, 5, 4, 7, 6, 9, 8) if unit * k != size]
    turn = position % 3
    return tuple(unit * k for k in times[turn : turn + 5])


def _multiples_of_power(most: int, size: int, position: int) -> tuple[int, ...]:
    """Return multiples of the largest power of two in a size, up to `most`."""
    return _multiples_of(min(size & -size, most), size, position)


SEARCHED: tuple[Choice, ...] = (
    _any,
    _near,
    *(partial(_multiples_of_power, most) for most in (16, 64)),
    *(partial(_multiples_of, unit) for unit in (3, 5)),
)
"""Ways to choose sizes, in order of preference."""


# Probing of an undescribed module: sizes are axes of its inputs, named by the caller.

HEAVY_FLOPS = 2**35
"""FLOPs of a probe above which the module first runs on tensors without values."""

Attempts = Iterator[tuple[Vocabulary, list[dict[str, int]]]]


def named_axes(
    module,
    recording: Recording,
    symbols: dict,
    build: Callable | None,
    adapt: Callable[[Vocabulary], Vocabulary] = lambda vocabulary: vocabulary,
) -> tuple[dict[str, int], Attempts]:
    """Return the sizes of this run, from `symbols={"B": 0, "T": ("ids", 1)}`, and ways to solve its dimensions.

    A list of axes, `{"B": [("ids", 0), ("images", 0)]}`, is one size of several inputs.

    A way is a vocabulary and the sizes of its probes; the first comes first. There is none without symbols. With
    `build`, an axis of a parameter can be a symbol, too: `{"D": ("proj.weight", 0)}`. Probes run a copy of the module
    and of its inputs that shares its parameters; `adapt` changes the vocabulary of each way. Raise ValueError for a
    symbol of a missing axis, of axes of several sizes, or of an axis that another symbol names.
    """
    if not isinstance(symbols, Mapping):
        raise ValueError(f"symbols={quote(symbols)} names no axes, expected something like {{'B': 0, 'T': ('ids', 1)}}")
    if not symbols:
        return {}, iter(())
    inputs = recording.inputs
    known = {**(dict(module.named_parameters()) if build else {}), **inputs}
    axes = {name: _axes(name, place, inputs, known) for name, place in symbols.items()}
    sizes = {name: _size(name, places, known) for name, places in axes.items()}
    _check_once(axes)

    def attempts() -> Attempts:
        if build:
            yield from candidate_probes(adapt(Vocabulary(tuple(symbols), {}, build)), sizes)
            return
        heavy = probe_flops(recording, sizes) > HEAVY_FLOPS
        for vocabulary in copies(module, recording, axes, heavy):
            yield from candidate_probes(adapt(vocabulary), sizes, heavy and vocabulary.mode is None)

    return sizes, attempts()


def copies(
    module: torch.nn.Module, recording: Recording, axes: dict[str, list[tuple[str, int]]], heavy: bool
) -> Iterator[Vocabulary]:
    """Yield vocabularies of copies of a module and its inputs, with these axes at other sizes.

    A heavy module first runs on tensors without values, then any on real ones.
    """
    args, kwargs = recording.arguments

    def make_vocabulary(shared: dict[int, torch.Tensor], ready: Callable, mode=None, valueless=None) -> Vocabulary:
        copied = {id(module): shadow_copy(module, shared), **shared}

        def build(at: dict[str, int]) -> tuple:
            wanted: dict[str, dict[int, int]] = {}
            for name, places in axes.items():
                for key, axis in places:
                    wanted.setdefault(key, {})[axis] = at[name]
            inputs = recording.inputs.items()
            changed = {id(tensor): ready(resize(tensor, wanted.get(name, {}))) for name, tensor in inputs}
            return shadow_copy((module, args, kwargs), copied | changed)

        return Vocabulary(tuple(axes), {}, build, mode, valueless=valueless, axes=axes)

    def valueless() -> Vocabulary:
        shared, mode = without_values(module)
        return make_vocabulary(shared, mode.from_tensor, lambda: mode)

    outside = isinstance(module, Function) and not module.owned  # a function reads what it reads: no copy of it
    if heavy and not outside:
        yield valueless()
    own = parameters(module) | ({id(module): module} if outside else {})
    yield make_vocabulary(own, copy.copy, valueless=valueless)


def copies_at_same_sizes(module: torch.nn.Module, recording: Recording) -> Iterator[Vocabulary]:
    """Yield vocabularies of copies of a module at the sizes of a run without named axes, in order of preference."""
    return copies(module, recording, {}, flops(recording) > HEAVY_FLOPS)


def probe_flops(recording: Recording, sizes: dict[str, int]) -> float:
    """Return the approximate FLOPs of the largest probe: those of the run, in proportion to its sizes."""
    return flops(recording) * max(prod(probe.values()) for probe in choose_sizes(sizes)) / prod(sizes.values())


def flops(recording: Recording) -> int:
    """Return the approximate FLOPs of a run."""
    return sum(
        cost.flops(op.name, tuple(shape for shape, *_ in op.inputs), op.outputs[0][0]) or 0
        for op in recording.ops
        if op.outputs and not op.layout
    )


def _axes(name, place, inputs: Mapping, known: Mapping) -> list[tuple[str, int]]:
    """Return the axes at a place of a symbol: an axis of all `inputs`, one of those `known` by its name, or a list of
    such places."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"symbols: {quote(name)} is not a name for a size, expected letters, digits and _")
    if isinstance(place, list) and place:
        return list(dict.fromkeys(axis for item in place for axis in _axes(name, item, inputs, known)))
    if isinstance(place, int):
        known = inputs
        axes = [(key, place) for key, tensor in inputs.items() if -tensor.dim() <= place < tensor.dim()]
    elif isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str) and isinstance(place[1], int):
        key, axis = place
        matching = {name: tensor for name, tensor in known.items() if name == key or fnmatchcase(name, key)}
        axes = [(name, axis) for name, tensor in matching.items() if -tensor.dim() <= axis < tensor.dim()]
    else:
        raise ValueError(
            f"symbols: {quote(name)} is said to be {quote(place)}, expected an axis, (input, axis), or a list of these"
        )
    if not axes:
        shapes = ", ".join(f"{key} {list(tensor.shape)}" for key, tensor in known.items())
        raise ValueError(f"symbols: {quote(name)} is said to be axis {quote(place)}, which there is not: {shapes}")
    return [(key, axis % known[key].dim()) for key, axis in axes]


def _size(name: str, places: list[tuple[str, int]], known) -> int:
    size = known[places[0][0]].shape[places[0][1]]
    if other := next((place for place in places if known[place[0]].shape[place[1]] != size), None):
        alike = [place for place in places if known[place[0]].shape[place[1]] == size]
        both = " and ".join(
            f"{known[key].shape[axis]} in axis {axis} of {quote(key)}" for key, axis in (places[0], other)
        )
        wanted = alike if len(alike) > 1 else alike[0]
        raise ValueError(
            f"symbols: {quote(name)} is {both}; expected the inputs that have it, as in {{{name!r}: {wanted}}}"
        )
    return size


def _check_once(axes: dict[str, list[tuple[str, int]]]) -> None:
    """Raise ValueError if two symbols name one axis."""
    named: dict[tuple[str, int], str] = {}
    for name, places in axes.items():
        for place in places:
            if (first := named.setdefault(place, name)) != name:
                both = f"{quote(first)} and {quote(name)}"
                raise ValueError(
                    f"symbols: {both} both name axis {place[1]} of {quote(place[0])}, expected one of them"
                )


def resize(tensor: torch.Tensor, sizes: dict[int, int]) -> torch.Tensor:
    """Return a tensor with axes repeated or cut to other sizes, so that values stay in range.

    Its memory layout stays, since the ops depend on it.
    """
    resized = tensor.detach()
    if not sizes:
        return resized
    for axis, size in sizes.items():
        resized = resized.index_select(axis, torch.arange(size, device=tensor.device) % tensor.shape[axis])
    return resized if tensor.is_contiguous() else _with_layout_of(resized, tensor)


def _with_layout_of(resized: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return the same values with the memory layout of `like`: its order of axes, its gaps, its expanded axes."""
    whole, strides = resized.shape, [0] * resized.dim()
    dense = dense_like = 1
    for axis in sorted(range(like.dim()), key=like.stride):
        if like.stride(axis) == 0:
            resized = resized.narrow(axis, 0, 1)
            continue
        strides[axis] = dense + (like.stride(axis) > dense_like)
        dense, dense_like = strides[axis] * whole[axis], like.stride(axis) * like.shape[axis]
    return (
        torch.empty_strided(resized.shape, strides, dtype=resized.dtype, device=resized.device)
        .copy_(resized)
        .expand(whole)
    )


# Dependence of an unnamed run on the values of its input: the run is repeated on other values.


def solve_value_dependence(module: torch.nn.Module, recording: Recording) -> tuple[Solution | None, str]:
    """Return the numbers, sizes and external tensors that differ in a run on other values, and a note.

    The first is None if nothing differs. The note says why there was no such run, or is empty.
    """
    if recording.calls is None or any(tensor.is_meta for tensor in (*recording.inputs.values(), *module.parameters())):
        return None, ""
    problem = ""
    try:
        for vocabulary in copies_at_same_sizes(module, recording):
            partial = PartialSolution(recording, vocabulary, {}, [{}])
            for kind in probe_kinds(CONSTANTS, partial):
                kind.make(partial)
            if not partial.problems:
                return partial.dependence(), ""
            problem = partial.problems[-1]
    except Exception as error:  # of what can't be copied
        problem = UNCOMPARED_NOTE.format(reason(error))
    return None, problem


@probe_kind("no values", CONSTANTS, cost=1, applies=lambda partial: not partial.sizes and partial.vocabulary.mode)
def _run_without_values(partial: PartialSolution) -> None:
    """Run the model on tensors without values: where it runs, nothing depends on these."""
    try:
        partial.vocabulary.probe({}, primitives=False)
    except Exception as error:  # the model's own
        partial.problems.append(UNCOMPARED_NOTE.format(reason(error)))
