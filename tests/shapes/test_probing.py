"""Runs at other sizes: their sizes, their alignment with the run, and the sizes that stay unknown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import prod

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import tracer
from tests.support.drawing import check_name, drawn_alike
from tracer.capture import record
from tracer.shapes import Vocabulary, solve, variation
from tracer.shapes.alignment import align
from tracer.shapes.probes import candidate_probes, choose_sizes, probe_flops, resize
from tracer.verify.checks.run import at

NAMES = "ABCDEFGHIJKL"
"""Symbols, more than there are rows of sizes."""


class _Takes(nn.Module):
    """A module that runs only at some sizes of its second axis."""

    def __init__(self, allowed):
        super().__init__()
        self.allowed = allowed

    def forward(self, x: Tensor) -> Tensor:
        if not self.allowed(x.shape[1]):
            raise ValueError("another size was expected")
        return x + 0


def _sizes() -> Iterator[str]:
    """Check that probes are of other sizes in each run, and no two symbols have one size in a run."""
    sizes = dict.fromkeys(NAMES, 30)
    few = [at for _, probes in candidate_probes(Vocabulary(tuple(NAMES), {}, dict), sizes, heavy=True) for at in probes]
    for probes, most, rows in ((choose_sizes(sizes), 70, 8), (few, 15, 5)):
        if len(probes) != 5 or any(tuple(probe) != tuple(NAMES) for probe in probes):
            yield f"there are {len(probes)} probes of {[*probes[0]]}, expected 5 of {[*NAMES]}"
        for name in NAMES:
            column = [probe[name] for probe in probes]
            if len(set(column)) < len(column) or not all(0 < size <= most for size in column):
                yield f"the sizes of {name} in the probes are {column}, expected five different ones up to {most}"
        for one, other in combinations(NAMES, 2):
            same = [probe[one] == probe[other] for probe in probes]
            if all(same) or (NAMES.index(other) < rows and any(same)):
                yield f"{one} and {other} are probed at {[(probe[one], probe[other]) for probe in probes]}"
    for name in NAMES[:8]:
        column = [probe[name] for probe in choose_sizes(sizes)[:-1]]
        for by in (2, 3):
            if len({size % by for size in column}) < 2 or not {0, by - 1} <= {size % by for size in column}:
                yield f"the sizes of {name} leave {[size % by for size in column]}, divided by {by}"


def _ways() -> Iterator[str]:
    """Check that a module that takes some sizes only is probed at some of these."""
    cases = {
        "any": (lambda size: True, 12),
        "up to its own": (lambda size: size <= 12, 12),
        "near its own": (lambda size: 6 <= size <= 12, 12),
        "multiples of 4": (lambda size: size % 4 == 0, 12),
        "multiples of 16": (lambda size: size % 16 == 0, 48),
        "multiples of 64": (lambda size: size % 64 == 0, 192),
    }
    for what, (allowed, size) in cases.items():
        for position in range(3):
            sizes = {**{f"S{i}": 9 + i for i in range(position)}, "T": size}
            ways = list(candidate_probes(Vocabulary(tuple(sizes), {}, _building(allowed)), sizes))
            lengths = [probe["T"] for probe in ways[-1][1]]
            if not all(map(allowed, lengths)) or min(lengths) < 1 or len(set(lengths)) < 5 - ("own" in what):
                yield f"a module that takes {what} of {size} is probed at {lengths}"
            if (len(ways) == 1) != (what == "any"):
                yield f"a module that takes {what} of {size} is probed in {len(ways)} ways"
    for allowed, size in ((lambda size: size <= 12, 12), (lambda size: size % 16 == 0, 48)):
        trace = tracer.trace(_Takes(allowed), torch.randn(2, size, 3), symbols={"B": 0, "T": 1}, prove=False)
        if trace.ops[0].outputs[0].symbolic != ("B", "T", "3"):
            yield f"a module that does not take any size is not solved: {trace.ops[0].outputs[0].symbolic}"


def _building(allowed):
    return lambda sizes: (_Takes(allowed), (torch.ones(1, sizes["T"]),))


def _work() -> Iterator[str]:
    """Check the cost of the largest probe, counted by PyTorch at its sizes; the library's estimate is linear in
    these."""
    net, sizes = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), {"B": 3, "T": 7}
    largest = max(choose_sizes(sizes), key=lambda probe: prod(probe.values()))
    with FlopCounterMode(display=False) as counter:
        net(torch.ones(largest["B"], largest["T"], 8))
    said = probe_flops(record(net, (torch.ones(3, 7, 8),), attention=False), sizes)
    if abs(said - counter.get_total_flops()) > 0.5:
        yield f"a probe is said to take {said} FLOPs, counted {counter.get_total_flops()}"


def _laid_out() -> Iterator[str]:
    """Check that a tensor at another size has reproducible values of its own, and the same memory layout."""
    base = torch.arange(2.0 * 3 * 5 * 4).view(2, 3, 5, 4)
    cases = {
        "as it is": base,
        "transposed": base.transpose(1, 3),
        "channels last": base.contiguous(memory_format=torch.channels_last),
        "with gaps": base[..., :3],
        "with gaps between rows": base[:, :, ::2],
        "expanded": base[:, :1].expand(2, 6, 5, 4),
        "expanded twice": base[:1, :, :, :1].expand(4, 3, 5, 7),
        "expanded and transposed": base[:, :, :1].expand(2, 3, 5, 4).permute(3, 0, 1, 2),
    }
    for what, tensor in cases.items():
        for wanted in ({}, {0: 7}, {1: 1}, {1: 8, 2: 3}, {3: 9, 0: 1}):
            made = resize(tensor, wanted)
            shape = tuple(wanted.get(axis, size) for axis, size in enumerate(tensor.shape))
            index = [torch.tensor([i % tensor.shape[axis] for i in range(size)]) for axis, size in enumerate(shape)]
            if tuple(made.shape) != shape or not torch.equal(made, tensor[torch.meshgrid(*index, indexing="ij")]):
                yield f"a tensor {what} has other values at {wanted}"
                continue
            long = [axis for axis, size in enumerate(shape) if min(size, tensor.shape[axis]) > 1]
            still = [axis for axis in long if tensor.stride(axis) == 0]
            order = sorted(set(long) - {*still}, key=tensor.stride)
            if [axis for axis in long if made.stride(axis) == 0] != still:
                yield f"a tensor {what} is repeated along {still}, at {wanted} its strides are {made.stride()}"
            elif sorted(order, key=made.stride) != order or made.is_contiguous() < tensor.is_contiguous():
                yield f"a tensor {what} lies in memory by {tensor.stride()}, at {wanted} by {made.stride()}"
            elif len(long) == 4 and made.is_contiguous() != tensor.is_contiguous():
                yield f"a tensor {what} is contiguous: {tensor.is_contiguous()}, at {wanted}: {made.is_contiguous()}"


class _Differs(nn.Module):
    """A module whose ops differ with the batch: copies, and a reshape that is a view or a copy."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y = y.transpose(0, 1).reshape(-1)
        if len(x) == 2:
            y = y.sin()
        y = y + 1
        if len(x) == 3:
            y = y.clone()
        return y.exp()


def _alignment() -> Iterator[str]:
    """Check the alignment of the ops of two runs, by hand."""
    runs = {size: record(_Differs(), (torch.ones(size, 5),), attention=False).ops for size in (1, 2, 3, 4)}
    names = {size: [op.name for op in ops] for size, ops in runs.items()}
    copied = ["clone", "_unsafe_view"]
    if names[1] != ["mul", "transpose", "view", "add", "exp"] and names[1] != [
        "mul",
        "transpose",
        *copied,
        "add",
        "exp",
    ]:
        yield f"a small module runs {names[1]}"
    for a, b in ((1, 2), (2, 1), (1, 4), (4, 1), (2, 3), (3, 2), (3, 4), (4, 3), (2, 4), (4, 4)):
        places = align(runs[a], runs[b])
        expected = []
        for i, name in enumerate(names[a]):
            key = _place(names[a], i)
            expected.append(next((j for j in range(len(names[b])) if _place(names[b], j) == key), None))
            if name == "sin" and "sin" not in names[b]:
                expected[-1] = None
        if places != expected:
            yield f"of {names[a]} those in {names[b]} are said to be {places}, expected {expected}"


def _place(names: list[str], i: int) -> str:
    """Return the function of an op of `_Differs`, whatever its name."""
    if names[i] == "clone":
        return "copy of a reshape" if names[i + 1] == "_unsafe_view" else "copy"
    return "reshape" if names[i] in ("view", "_unsafe_view") else names[i]


class _Copies(nn.Module):
    """A module that copies the outputs of other ops, at the batch of the run alone."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        normed, mean, _ = torch.ops.aten.native_layer_norm(x, [8], None, None, 1e-5)
        best, places = x.max(dim=1)
        wide = x[:, 1:] * 2
        if len(x) == 2:
            normed, mean, best, wide = normed.clone(), mean.clone(), best.clone(), wide.clone()
        return normed + 0, mean + 0, best + 0, wide + 0, places


class _Only(nn.Module):
    """A module that runs one op at the batch of the run alone, one at the length of the run alone."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        if len(x) == 2:
            y = y.sin()
        if x.shape[1] == 7:
            y = y.cos()
        return y + 1


def _copies() -> Iterator[str]:
    """Check that a copy that no probe ran has the shape of its source."""
    trace = tracer.trace(_Copies(), torch.randn(2, 7, 8), symbols={"B": 0, "T": 1}, prove=False)
    found = [op.outputs[0].symbolic for op in trace.ops if op.op == "clone"]
    expected = [("B", "T", "8"), ("2", "T", "1"), ("2", "8"), ("B", "T - 1", "8")]  # two outputs have one shape
    if found != expected:
        yield f"copies have the shapes {found}, expected {expected}"
    held = ["B held at 2" in op.note for op in trace.ops if op.op == "clone"]
    if held != [False, True, True, False]:
        yield f"copies say that B is held: {held}"


def _missing() -> Iterator[str]:
    """Check that an op that only this batch runs is solved with B held; one that only this run runs has no symbols, and
    a note."""
    for primitives in (False, True):
        trace = tracer.trace(
            _Only(), torch.randn(2, 7, 8), symbols={"B": 0, "T": 1}, prove=False, primitives=primitives
        )
        found = {op.op: (op.inputs[0].symbolic, op.outputs[0].symbolic, op.note) for op in trace.ops}
        expected = {
            "mul": (("B", "T", "8"),) * 2,
            "sin": (("2", "T", "8"),) * 2,
            "cos": (("?", "?", "?"),) * 2,
            "add": (("B", "T", "8"),) * 2,
        }
        for name, shapes in expected.items():
            if found[name][:2] != shapes:
                yield f"{name} has the shapes {found[name][:2]}, expected {shapes}"
            says = {"sin": "B held at 2", "cos": "does not run at all sizes"}.get(name, "")
            if (says not in found[name][2]) or (not says and found[name][2]):
                yield f"{name} says {found[name][2]!r}, expected {says!r}"
        for opened in trace.decompositions:
            shapes = {x.symbolic for one in opened.primitives for x in (*one.inputs, *one.outputs)}
            if shapes - {expected[trace.ops[opened.op].op][0], ()}:
                yield f"primitives of {trace.ops[opened.op].op} have the shapes {shapes}"


def _unseen_sizes() -> Iterator[str]:
    """Check that every dimension of a module with windows, sums and rounded sizes is right at sizes that no probe
    had."""
    net = _Rounds()
    trace = tracer.trace(net, torch.randn(2, 13, 8), symbols={"B": 0, "T": 1}, prove=False)
    made = [op.outputs[0].symbolic or () for op in trace.ops if op.op == "add"]
    for sizes in ({"B": 3, "T": 38}, {"B": 6, "T": 41}):
        shapes = [tuple(one.shape) for one in net(torch.ones(sizes["B"], sizes["T"], 8))]
        for said, shape in zip(made, shapes, strict=True):
            if "?" in said or tuple(at(size, sizes) for size in said) != shape:
                yield f"a shape is solved as {said}, at {sizes} it is {shape}"
    build = Vocabulary(("B",), {}, lambda sizes: (net, (torch.ones(sizes["B"], 9, 8),)))
    run = record(net, (torch.ones(2, 9, 8),), attention=False)
    for count in range(5):
        try:
            solve(run, {"B": 2}, build, [{"B": 3 + i} for i in range(count)])
        except ValueError:
            if count >= 3:
                yield f"{count} probes are said to be too few"
            continue
        if count < 3:
            yield f"{count} probes are enough to solve and to predict"


class _Joined(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y], 1) + 0


def _axes() -> Iterator[str]:
    """Check that axes are named of one input or of all, from the start or from the end."""
    given = torch.randn(2, 5, 8), torch.randn(2, 9, 8)
    for symbols, expected in (
        ({"B": 0, "T": ("x", 1)}, ("B", "T + 9", "8")),
        ({"B": 0, "T": ("y", -2)}, ("B", "T + 5", "8")),
        ({"B": -3, "T": ("x", 1), "U": ("y", 1)}, ("B", "T + U", "8")),
        ({"D": -1}, ("2", "14", "D")),
        ({"B": ("x", -3)}, None),
    ):
        said = tracer.trace(_Joined(), *given, symbols=symbols, prove=False).ops[-1].outputs[0].symbolic
        if said != expected:
            yield f"with the axes {symbols} the shape is {said}, expected {expected}"


class _Rounds(nn.Module):
    """A module that slices every second, the first half, the rest, and repeats."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        every, half = x[:, ::2], x[:, : x.shape[1] // 2]
        rest = x[:, x.shape[1] // 2 :]
        parts = every, half, rest, torch.cat([every, half, x[:, -3:]], 1), x[:, 1:-2].repeat(7, 1, 1)
        return tuple(part + 0 for part in parts)


CHECKS = [_sizes, _ways, _work, _laid_out, _alignment, _copies, _missing, _unseen_sizes, _axes]


@pytest.mark.parametrize("problems", CHECKS, ids=check_name)
def test_runs_at_other_sizes_are_right(problems):
    with drawn_alike():
        assert list(problems()) == []


def test_a_kind_of_probe_is_one_entry(monkeypatch):
    """One that runs far beyond all others contradicts a formula that they leave."""

    def cut(x):
        return x[:, :1].expand(-1, min(int(str(x.size(1))), 300), -1)  # no comparison of sizes that a log could see

    def solved():
        return tracer.trace(cut, torch.randn(2, 5, 8), symbols={"B": 0, "T": 1}).ops[-1].outputs[0].symbolic

    assert solved() == ("B", "T", "8")
    monkeypatch.setattr(variation, "PROBES", [*variation.PROBES])

    @variation.probe_kind("far beyond", variation.FORMULAS, cost=1, applies=lambda partial: "T" in partial.sizes)
    def run_far_beyond(partial):
        partial.try_sizes({**partial.sizes, "T": 400}, partial.notes)

    assert solved() == ("B", "?", "8")
