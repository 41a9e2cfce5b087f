"""Idiom recognition: calls that together compute a function that has a name become one call of it.

However an author spelled it, what a group of calls computes is known by running it: each group that has one input (a
single-entry region) is run again in float64 on random numbers, beside the functions that its ops let expect. The one
that gives the same numbers takes the place of the group, its parameters fitted to what came out. What is named so
is proven once more, as every line is, on the numbers of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch

from tracer.common.cache import Cache
from tracer.derive.composed import Made
from tracer.derive.graph import Graph, loses
from tracer.derive.replay import Unplayable, play
from tracer.equations.rotary import HALVES, NEIGHBOURS
from tracer.ops import IDENTITIES, LAYOUTS, RESHAPES, base
from tracer.recorder.calls import Call, Ref

aten = torch.ops.aten

NEAR = 1e-8
"""How far two results may be apart, as a share of the larger one: constants in code have about nine digits."""
LONGEST = 24
"""How many calls an idiom has at most."""
CELLS = 2**16
"""How many numbers a region is run on, where it can be made smaller."""
HELD = 4096
"""How many decisions are held: the blocks of a model ask for the same ones."""

POINTWISE = frozenset(
    """add sub rsub mul div true_divide neg pow square sqrt rsqrt reciprocal exp exp2 expm1 log log1p log2 sigmoid tanh
    erf erfc special_erf special_erfc special_expit special_ndtr softplus logaddexp log_sigmoid relu clamp clamp_min
    clamp_max maximum minimum abs where gt ge lt le masked_fill addcmul addcdiv lerp relu6 hardtanh sinh cosh
    log_sigmoid_forward""".split()
)
REDUCTIONS = frozenset(
    """sum mean amax max var std var_mean std_mean norm linalg_vector_norm linalg_norm logsumexp softmax _softmax
    log_softmax _log_softmax frobenius_norm""".split()
)
CURVED = frozenset(
    "exp exp2 expm1 sigmoid tanh erf erfc special_erf special_erfc special_expit special_ndtr softplus "
    "logaddexp log_sigmoid sinh cosh".split()
)
"""Functions that an activation is made of."""
ROOTS = frozenset("sqrt rsqrt pow std std_mean norm linalg_vector_norm linalg_norm frobenius_norm".split())
"""Calls that a deviation is made by."""
EXPONENTIALS = frozenset("exp logsumexp softmax _softmax log_softmax _log_softmax".split())
"""Calls that a softmax is made by."""
COMPUTES = POINTWISE | REDUCTIONS
ROTATES = frozenset("cat concat stack view_as_real".split())
"""Calls that a rotary position ends with, perhaps before a layout."""
ROTATIONS = ROTATES | frozenset("add sub mul neg view_as_complex overwrite copy empty_like zeros_like".split())
"""Calls that it is made of."""
FARTHEST, LARGEST_BASE, LARGEST_TABLE = 3, 1e9, 2**23
"""The largest number of a first place, the largest base, and the most cells, of a table of sines and cosines."""
SMALL = (3, 5, 7, 11)
"""Sizes that a large region is tried at, where its own do not matter."""
LARGEST_EPS = 0.1
"""The largest number that is taken for one that keeps from dividing by 0."""


class Region(NamedTuple):
    """Calls, by their numbers, that together are a function of the values `given`, and what the last of them makes. The
    first of those given is the one that it is a function of; behind it stand parameters, or tables."""

    calls: tuple[int, ...]
    given: tuple[Ref, ...]
    end: Ref


class Place(NamedTuple):
    """In the place of a tensor among a call's arguments: which one of those that a region is given."""

    number: int


X = Place(0)


class Named(NamedTuple):
    """A call in the place of a region: its op, and its arguments."""

    func: Any
    arguments: dict[str, Any]


_decided = Cache(HELD)


def idioms(graph: Graph, spelled: frozenset[int], named: set[int]) -> Graph:
    """Return the graph with each group that computes a function with a name as one call of it; their ops go to
    `named`. What ops of `spelled` end stays as it is."""
    if not any(base(call.name) in CURVED | ROOTS | ROTATES for call in graph.calls):
        return graph
    varies = {key for key, of in graph.depends.items() if of == "x"}
    gone: set[int] = set()
    groups: list[tuple[set[int], list[Call]]] = []
    for index in reversed(range(len(graph.calls))):
        if index in gone or graph.calls[index].last - 1 in spelled:
            continue
        tables = _tables(graph, varies, index)
        regions = [*tables, *reversed([*_regions(graph, varies, index)]), *_rotations(graph, index)]
        for region in regions:
            if gone.isdisjoint(region.calls) and (found := _decision(graph, region)) is not None:
                group = _with_constants(graph, region, found)
                groups.append((group, [_call(graph, region, found, group)]))
                named.add(graph.calls[index].last - 1)
                gone |= group
                break
    return graph.replace(groups)


def _regions(graph: Graph, varies: set[str], last: int) -> Iterator[Region]:
    """The regions with one input, beside what depends on none, that end with a call, from the smallest on."""
    end = graph.calls[last].outputs
    if (
        graph.name(last) not in COMPUTES
        or len(end) != 1
        or not end[0].dtype.is_floating_point
        or end[0].key not in varies
    ):
        return
    beside: dict[str, Ref] = {}
    for region, waiting in _upwards(graph, last, COMPUTES | LAYOUTS, lambda key: key in varies, beside):
        alone = len(waiting) == 1 and waiting[0].dtype.is_floating_point
        if alone and sum(graph.name(one) in COMPUTES for one in region) > 1:
            yield Region(tuple(sorted(region)), (waiting[0], *beside.values()), end[0])


def _rotations(graph: Graph, last: int) -> Iterator[Region]:
    """The regions of a tensor and two tables, or of one table of complex numbers, that may turn pairs of its cells."""
    call = graph.calls[last]
    source = graph.made(graph.inputs[last][0].key) if graph.inputs[last] else None
    joins = source is not None and base(source.name) in ROTATES
    if graph.name(last) not in {"add", "sub", "overwrite"} | ROTATES and not (graph.name(last) in RESHAPES and joins):
        return
    (end,) = call.outputs[:1]
    for region, waiting in _upwards(graph, last, ROTATIONS | LAYOUTS, lambda key: True, {}):
        whole = [ref for ref in waiting if ref.shape == end.shape and ref.dtype.is_floating_point]
        if len(waiting) not in (2, 3) or len(whole) < 1 or sum(graph.name(one) == "mul" for one in region) < 1:
            continue
        for x in whole:
            tables = [ref for ref in waiting if ref is not x]
            for order in (tables, tables[::-1])[: len(tables)]:
                yield Region(tuple(sorted(region)), (x, *order), end)


def _tables(graph: Graph, varies: set[str], last: int) -> Iterator[Region]:
    """The calls that make a table of sines and cosines of nothing."""
    call = graph.calls[last]
    if not call.outputs or call.outputs[0].key in varies or graph.name(last) not in ROTATES | RESHAPES | {"overwrite"}:
        return
    end = call.outputs[0]
    if len(end.shape) < 2 or prod(end.shape[:-2]) != 1 or not end.dtype.is_floating_point:
        return
    closure, waiting = {last}, [last]
    while waiting:
        for ref in graph.inputs[waiting.pop()]:
            index = graph.maker.get(ref.key)
            if index is None:
                return
            if index not in closure:
                closure.add(index)
                waiting.append(index)
    if {"sin", "cos"} <= {graph.name(one) for one in closure}:
        yield Region(tuple(sorted(closure)), (), end)


def _upwards(
    graph: Graph, last: int, may: frozenset[str], follows: Callable[[str], bool], beside: dict[str, Ref]
) -> Iterator[tuple[list[int], list[Ref]]]:
    """The calls from one on upwards, as far as they may and nothing else takes what they make, one more each time, and
    the values that they are made of. What is not to be followed goes to `beside`."""
    region: list[int] = []
    waiting = {ref.key: ref for ref in graph.calls[last].outputs}
    while waiting and len(region) < LONGEST:
        able = [key for key in waiting if _joins(graph, graph.maker.get(key), region, last, may)]
        if not able:
            return
        index = max(graph.maker[key] for key in able)
        region.append(index)
        for ref in graph.calls[index].outputs:
            waiting.pop(ref.key, None)
        for ref in graph.inputs[index]:
            (waiting if follows(ref.key) else beside)[ref.key] = ref
        yield region, list(waiting.values())


def _joins(graph: Graph, index: int | None, region: list[int], last: int, may: frozenset[str]) -> bool:
    """Whether a call may be part of an idiom, and nothing outside of its region takes what it makes."""
    if index is None:
        return False
    call, name = graph.calls[index], graph.name(index)
    drops = name in IDENTITIES and call.arguments.get("train") and call.arguments.get("p")
    if (
        name not in may | IDENTITIES
        or drops
        or any(loses(ref.dtype, one.dtype) for ref in graph.inputs[index] for one in call.outputs)
    ):
        return False
    return index == last or all(
        ref.key not in graph.returned and all(taker in region for taker in graph.users.get(ref.key, ()))
        for ref in call.outputs
    )


def _decision(graph: Graph, region: Region) -> Named | None:
    """The call that computes what a region does; None where none that is known does."""
    local: dict[str, object] = {ref.key: Place(number) for number, ref in enumerate(region.given)}
    said: list[object] = [tuple((ref.shape, ref.dtype) for ref in region.given)]
    for index in region.calls:
        call = graph.calls[index]
        local.update({ref.key: len(local) for ref in call.outputs if ref.key not in local})
        said.append((str(call.func), repr([_signed(value, local) for value in call.arguments.values()])))
    key = tuple(said)
    found = _decided.get(key)
    if found is None:
        _decided.put(key, found := (_recognised(graph, region),))
    return found[0]


def _signed(value, local: dict) -> object:
    """An argument with the place of a tensor in its region in the place of the tensor."""
    if isinstance(value, Ref):
        return local.get(value.key), value.shape
    return tuple(_signed(one, local) for one in value) if isinstance(value, tuple) else value


def _with_constants(graph: Graph, region: Region, named: Named) -> set[int]:
    """A region with what was made of no input for it alone, but for what the call that replaces it takes."""
    if not region.given:
        return graph.only_in({region.calls[-1]}, lambda call: True)
    taken = {
        graph.maker.get(region.given[one.number].key) for one in named.arguments.values() if isinstance(one, Place)
    }
    return graph.only_in(set(region.calls), lambda call: graph.maker.get(call.outputs[0].key) not in taken)


def _call(graph: Graph, region: Region, named: Named, group: set[int]) -> Call:
    """The call that replaces a region."""
    given = region.given
    arguments = {n: given[one.number] if isinstance(one, Place) else one for n, one in named.arguments.items()}
    name = named.func._schema.name.split("::")[-1]
    inner = tuple(graph.calls[one] for one in sorted(group))
    return graph.calls[region.calls[-1]]._replace(func=named.func, name=name, arguments=arguments, inner=inner)


# What a region may be: each of these looks at its ops, runs it where they let expect the function, and says the call.


class Trial:
    """A region that is run on numbers of our own; a large one at smaller sizes."""

    def __init__(self, graph: Graph, region: Region):
        self.region, self.calls = region, [graph.calls[index] for index in region.calls]
        self.names = {base(call.name) for call in self.calls}
        self.shape, self.end = region.given[0].shape if region.given else (), region.end.shape
        self.axes = self._axes()
        self.smaller = self._smaller()

    def _axes(self) -> tuple[int, ...]:
        """The axes, from 0, along which its calls reduce."""
        rank, found = len(self.shape), set()
        for call in self.calls:
            if base(call.name) in REDUCTIONS and "other" not in call.arguments:
                dim = call.arguments.get("dim")
                dims = range(rank) if dim is None or dim == () else dim if isinstance(dim, tuple) else (dim,)
                found.update(one % rank for one in dims if rank)
        return tuple(sorted(found))

    def _smaller(self) -> dict[int, int]:
        """For each size that does not matter, the one that is tried: none, where the run's own are small."""
        matter = {self.shape[axis] for axis in (*self.axes, -1)} if self.shape else set()
        found, count = {}, prod(self.shape)
        for size, few in zip(sorted(set(self.shape) - matter, reverse=True), SMALL, strict=False):
            if count > CELLS and size > few:
                found[size], count = few, count // size * few
        return found

    def _sized(self, value):
        """A size, or several, as they are tried."""
        if isinstance(value, tuple):
            return tuple(map(self._sized, value))
        return self.smaller.get(value, value) if isinstance(value, int) and not isinstance(value, bool) else value

    def draw(self, number: int) -> torch.Tensor:
        """Random numbers for one of those that the region is given."""
        ref = self.region.given[number]
        shape = self._sized(ref.shape)
        if prod(shape) > 8 * CELLS or not (ref.dtype.is_floating_point or ref.dtype.is_complex):
            raise Unplayable(f"{ref} is too large to be run again, or holds no numbers with a fraction")
        dtype = torch.complex128 if ref.dtype.is_complex else torch.float64
        return torch.randn(shape, generator=torch.Generator().manual_seed(number), dtype=dtype)

    def run(self, *given: torch.Tensor) -> torch.Tensor:
        """What it makes of these."""
        values = {ref.key: value for ref, value in zip(self.region.given, given, strict=True)}
        return play(map(self._call, self.calls), values)[self.region.end.key]

    def _call(self, call: Call) -> Call:
        """A call, told the sizes that are tried."""
        if not self.smaller or base(call.name) not in LAYOUTS:
            return call
        return call._replace(arguments={name: self._sized(value) for name, value in call.arguments.items()})

    def numbers(self) -> Iterator[float]:
        """The small numbers in its calls, which may be what a norm adds to a variance, or the root of that; and 0."""
        yield 0.0
        for value in (value for call in self.calls for value in call.arguments.values()):
            if isinstance(value, float) and 0 < value <= LARGEST_EPS:
                yield from (value, value**2)


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results are the same but for rounding."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=NEAR, atol=NEAR / 10, equal_nan=True)


def _recognised(graph: Graph, region: Region) -> Named | None:
    trial = Trial(graph, region)
    for known in (_activation, _softmax, _norm, _rotation) if region.given else (_sinusoids,):
        try:
            if (named := known(trial)) is not None:
                return named
        except (RuntimeError, TypeError, ValueError, IndexError):  # it does not run on those numbers
            continue
    return None


ACTIVATIONS: tuple[tuple[Any, dict[str, Any]], ...] = (
    (aten.silu.default, {}),
    (aten.gelu.default, {"approximate": "none"}),
    (aten.gelu.default, {"approximate": "tanh"}),
    (aten.sigmoid.default, {}),
    (aten.tanh.default, {}),
    (aten.softplus.default, {"beta": 1, "threshold": 20}),
    (aten.log_sigmoid.default, {}),
    (aten.mish.default, {}),
    (aten.elu.default, {"alpha": 1, "scale": 1, "input_scale": 1}),
    (aten.selu.default, {}),
    (aten.hardswish.default, {}),
    (aten.hardsigmoid.default, {}),
)
"""Functions of each number by itself, with the arguments behind it."""
TRIED = torch.linspace(-9, 9, 257, dtype=torch.float64) + 0.01
"""Numbers that they are told apart by."""


def _activation(trial: Trial) -> Named | None:
    """A function of each number by itself."""
    if len(trial.region.given) > 1 or not trial.names & CURVED or not trial.names <= POINTWISE | IDENTITIES:
        return None
    made = trial.run(TRIED)
    for func, settings in ACTIVATIONS:
        if _close(made, func(TRIED, **settings)):
            return Named(func, {func._schema.arguments[0].name: X, **settings})
    return None


def _softmax(trial: Trial) -> Named | None:
    """A softmax along one axis, its logarithm, or the logarithm of its sum."""
    if len(trial.axes) != 1 or len(trial.region.given) > 1 or not trial.names & EXPONENTIALS:
        return None
    (axis,), x = trial.axes, trial.draw(0) * 3
    if x.shape[axis] == 1:  # whatever it is of, it is 1
        return None
    made = trial.run(x)
    if trial.end == trial.shape:
        for func in (aten.softmax.int, aten.log_softmax.int):
            if _close(made, func(x, axis)):
                return Named(func, {"self": X, "dim": axis, "dtype": None})
        return None
    keeps = len(trial.end) == len(trial.shape)
    same = _close(made, aten.logsumexp.default(x, [axis], keeps))
    return Named(aten.logsumexp.default, {"self": X, "dim": (axis,), "keepdim": keeps}) if same else None


class Norm(NamedTuple):
    """A norm over the last axes: what is subtracted and divided by, `func` its op."""

    func: Any
    centred: bool
    less: int = 0
    """How many fewer numbers than there are the sum of squares is divided by."""
    outside: bool = False
    """Whether ε is added to the deviation, not to the variance."""

    def run(self, x: torch.Tensor, axes: tuple[int, ...], eps: float) -> torch.Tensor:
        """`(x - μ) / √(σ² + ε)`."""
        x = x - x.mean(axes, keepdim=True) if self.centred else x
        count = prod(x.shape[axis] for axis in axes)
        variance = (x * x).sum(axes, keepdim=True) / (count - self.less)
        return x / (variance.sqrt() + eps if self.outside else (variance + eps).sqrt())

    @property
    def settings(self) -> dict[str, Any]:
        return {"less": self.less, "outside": self.outside} if self.func is DEVIATION else {}


DEVIATION = Made("deviation_norm", ("input", "normalized_shape", "weight", "bias", "eps", "less", "outside"))
NORMS = (
    Norm(aten.rms_norm.default, False),
    Norm(aten.layer_norm.default, True),
    *(Norm(DEVIATION, True, less, outside) for less, outside in ((1, False), (0, True), (1, True))),
)
SCALES = (1.0, 1e-2, 1e-4, 1e-6, 0.0)
"""How large the numbers are that a norm is tried on: small ones show what is added to the variance."""


def _norm(trial: Trial) -> Named | None:
    """A layer norm, or one by the root of the mean square, over the last axes, with or without γ and β."""
    axes, rank = trial.axes, len(trial.shape)
    last = axes == (*range(rank - len(axes), rank),)
    if (
        not axes
        or prod(trial.shape[axis] for axis in axes) < 3
        or not last
        or trial.end != trial.shape
        or not trial.names & ROOTS
    ):
        return None
    width, beside = trial.shape[-len(axes) :], trial.region.given[1:]
    if len(beside) > 2 or any(ref.shape[-len(axes) :] != width or prod(ref.shape) != prod(width) for ref in beside):
        return None
    vectors = [trial.draw(1 + place) for place in range(len(beside))]
    tried = [trial.draw(0) * scale for scale in SCALES]
    made = [trial.run(x, *vectors) for x in tried]
    for norm, eps, (gamma, beta) in product(NORMS, dict.fromkeys(trial.numbers()), AFFINE[len(beside)]):
        normed = (norm.run(x, axes, eps) for x in tried)
        normed = (x if gamma is None else x * vectors[gamma] for x in normed)
        if beta is not None and norm.func is aten.rms_norm.default:
            continue
        if all(map(_close, made, (x if beta is None else x + vectors[beta] for x in normed))):
            affine = {
                "weight": None if gamma is None else Place(1 + gamma),
                "bias": None if beta is None else Place(1 + beta),
            }
            if norm.func is aten.rms_norm.default:
                del affine["bias"]
            given = {"input": X, "normalized_shape": width, **affine, "eps": eps, **norm.settings}
            return Named(norm.func, given)
    return None


AFFINE = ([(None, None)], [(0, None), (None, 0)], [(0, 1), (1, 0)])
"""Which of so many vectors may be γ and β."""


ROPE = Made("rope", ("x", "cosine", "sine", "pairs"))
COMPLEX = Made("rope", ("x", "table", "pairs"))


def rotated(x: torch.Tensor, pairs: str) -> torch.Tensor:
    """Each pair (a, b) as (-b, a): of the two halves of the last axis, or of neighbours."""
    first, second = x.chunk(2, -1) if pairs == HALVES else (x[..., ::2], x[..., 1::2])
    return torch.cat([-second, first], -1) if pairs == HALVES else torch.stack([-second, first], -1).flatten(-2)


def _rotation(trial: Trial) -> Named | None:
    """Rotary positions: `x ⊙ cos + rotate(x) ⊙ sin`, with tables as wide as x, or one number for each pair."""
    tables, width = trial.region.given[1:], trial.shape[-1]
    wide = {ref.shape[-1:] for ref in tables}
    if len(wide) != 1 or not 1 <= len(tables) <= 2 or trial.end != trial.shape or not wide <= {(width,), (width // 2,)}:
        return None
    complex_, half = tables[0].dtype.is_complex, wide == {(width // 2,)}
    if complex_ != (len(tables) == 1) or width % 2 or (complex_ and not half):
        return None
    x, *drawn = (trial.draw(number) for number in range(len(trial.region.given)))
    made = trial.run(x, *drawn)
    cosine, sine = (drawn[0].real, drawn[0].imag) if complex_ else drawn
    alike = (NEIGHBOURS, HALVES) if trial.names & {"stack", "view_as_complex"} else (HALVES, NEIGHBOURS)
    for pairs in alike:  # one pair alone is of both
        tall = [spread(one, pairs) if half else one for one in (cosine, sine)]
        if _close(made, x * tall[0] + rotated(x, pairs) * tall[1]):
            if complex_:
                return Named(COMPLEX, {"x": X, "table": Place(1), "pairs": pairs})
            return Named(ROPE, {"x": X, "cosine": Place(1), "sine": Place(2), "pairs": pairs})
    return None


def spread(table: torch.Tensor, pairs: str) -> torch.Tensor:
    """One number for each pair as one for each of both."""
    return torch.cat([table, table], -1) if pairs == HALVES else table.repeat_interleave(2, -1)


SINUSOIDS = Made("sinusoids", ("base", "halves", "steps", "first"))


def _longer(call: Call, length: int) -> Call:
    """A call that counts one place, so that it counts several."""
    start, step = call.arguments.get("start", 0), call.arguments.get("step", 1)
    alone = base(call.name) == "arange" and call.outputs[0].shape == (1,)
    return call._replace(arguments=call.arguments | {"end": start + length * step}) if alone else call


def _sinusoids(trial: Trial) -> Named | None:
    """Sines and cosines of places, `i / b^(k/steps)`: in turn, or in two halves; b and the first i are fitted."""
    length, width = trial.end[-2:]
    if width < 4 or width % 2 or prod(trial.end) > LARGEST_TABLE:
        return None
    if length == 1:  # one place says nothing of rates
        length, trial.calls = 3, [_longer(call, 3) for call in trial.calls]
    made, pairs = trial.run().reshape(length, width), width // 2
    for halves in (False, True):
        sines, cosines = (made[:, :pairs], made[:, pairs:]) if halves else (made[:, ::2], made[:, 1::2])
        first = torch.atan2(sines[0, 0], cosines[0, 0]).round()
        rates = torch.atan2(sines, cosines)[1] - torch.atan2(sines, cosines)[0]
        angles = (torch.arange(length)[:, None] + first) * rates
        if 0 <= first <= FARTHEST and torch.allclose(angles.sin(), sines) and torch.allclose(angles.cos(), cosines):
            for steps in (pairs, pairs - 1):
                base = float(rates[1]) ** -steps
                spaced = round(base) ** (-torch.arange(pairs, dtype=made.dtype) / steps)
                if base < LARGEST_BASE and round(base) > 1 and torch.allclose(rates, spaced, rtol=NEAR):
                    return Named(
                        SINUSOIDS, {"base": round(base), "halves": halves, "steps": steps, "first": int(first)}
                    )
    return None
