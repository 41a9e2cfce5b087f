"""Axes as their factors: reshapes against PyTorch's own, and the recorder's axes against the numbers that moved."""

from collections.abc import Iterator
from math import prod

import pytest
import torch

from tracer.capture.score_path import Atom, Axes, axes_after, axes_before, axes_of, leaves
from tracer.symbols.axes import common_factors, factor_sizes, first_crossing, name_axes, parse_einsum, parse_pattern


@pytest.mark.parametrize(
    ("before", "after", "sizes"),
    [
        ((2, 12), (2, 3, 4), (2, 3, 4)),
        ((2, 3, 4), (6, 4), (2, 3, 4)),
        ((6, 4), (3, 8), (3, 2, 4)),
        ((4, 1, 6), (4, 6, 1), (4, 6)),
        ((), (1, 1), ()),
        ((12,), (12,), (12,)),
    ],
)
def test_a_reshape_is_its_factors(before, after, sizes):
    factors = common_factors(before, after)
    assert factors is not None and factors[0] == sizes
    for shape, side in ((before, factors[1]), (after, factors[2])):
        assert [prod(sizes[number] for number in axis) for axis in side] == list(shape)
        assert [number for axis in side for number in axis] == list(range(len(sizes)))


@pytest.mark.parametrize(("before", "after"), [((4, 6), (6, 4)), ((4, 9), (9, 4)), ((2, 3), (2, 4)), ((0, 2), (2, 0))])
def test_axes_that_cut_across_each_other_have_no_factors(before, after):
    assert common_factors(before, after) is None


def test_the_first_boundary_inside_an_axis_is_found():
    def divides(part: int, whole: int) -> bool:
        return whole % part == 0

    assert first_crossing([4, 24], [6, 24], divides) == 0
    assert first_crossing([2, 8, 48], [2, 12, 48], divides) == 1
    assert first_crossing([2, 8, 48], [1, 4, 16, 48], divides) is None


def test_a_pattern_is_read_for_the_ranks_of_its_tensors():
    (left, right), output = parse_pattern("... i k, k j -> ... i j", (4, 2, 4))
    assert left[2:] == (("i",), ("k",)) and left[:2] == output[:2] and right == (("k",), ("j",))
    assert parse_pattern("... d -> d", (1, 1))[0] == ((("d",),),) and parse_pattern("d -> d", (0, 0)) == (((),), ())
    inputs, _ = parse_pattern("x (h d), d -> x", (2, 1, 1, 1))
    assert inputs[2] == inputs[1] == (("d",),), "the last stands for those that follow"
    assert factor_sizes(inputs[:1], [(5, 12)], {"h": 3}) == {"x": 5, "h": 3, "d": 4}
    assert name_axes(3) == "a0 a1 a2" and name_axes(3, (0, 2), "k") == "k a1 k"


@pytest.mark.parametrize(
    ("equation", "ranks", "operands", "result"),
    [
        ("bik, bjk -> bij", (3, 3), ["bik", "bjk"], "bij"),
        ("...d,dk->...k", (3, 2), ["01d", "dk"], "01k"),
        ("...ij,...j->...i", (4, 2), ["01ij", "1j"], "01i"),
        ("ba,bc", (2, 2), ["ba", "bc"], "ac"),
        ("...b,b", (3, 1), ["01b", "b"], "01"),
        ("...a->a", (1,), ["a"], "a"),
    ],
)
def test_an_einstein_sum_has_a_letter_for_each_axis(equation, ranks, operands, result):
    assert parse_einsum(equation, ranks) == (operands, result)


LAYOUTS = [
    ("view", (), (2, 12), (2, 3, 4), lambda x: x.view(2, 3, 4)),
    ("view", (), (2, 3, 4), (2, 12), lambda x: x.view(2, 12)),
    ("view", (), (6, 4), (3, 8), lambda x: x.view(3, 8)),
    ("unsqueeze", (1,), (2, 3), (2, 1, 3), lambda x: x.unsqueeze(1)),
    ("squeeze", (1,), (2, 1, 3), (2, 3), lambda x: x.squeeze(1)),
    ("permute", ([2, 0, 1],), (2, 3, 4), (4, 2, 3), lambda x: x.permute(2, 0, 1)),
    ("permute", ([-1, 0, -2],), (2, 3, 4), (4, 2, 3), lambda x: x.permute(-1, 0, -2)),
    ("transpose", (1, -1), (2, 3, 4), (2, 4, 3), lambda x: x.transpose(1, -1)),
    ("t", (), (2, 3), (3, 2), lambda x: x.t()),
    ("mT", (), (2, 3, 4), (2, 4, 3), lambda x: x.mT),
    ("clone", (), (2, 3), (2, 3), lambda x: x.clone()),
]


def strides(axes: Axes) -> dict[Atom, int]:
    """Return the stride of each factor of the axes of a contiguous tensor."""

    def inner_first(atoms) -> Iterator[Atom]:
        return (leaf for atom in reversed(atoms) for leaf in reversed(leaves((atom,))))

    steps, stride = {}, 1
    for axis in reversed(axes):
        for atom in inner_first(axis):
            steps[atom] = stride
            stride *= atom.size
    return steps


@pytest.mark.parametrize(("name", "settings", "before", "after", "run"), LAYOUTS)
@pytest.mark.parametrize("split", [False, True])
def test_axes_go_where_the_numbers_go(name, settings, before, after, run, split):
    """With whole axes, and with axes of several factors, into which an earlier view joined them."""
    start = axes_of(before)
    if split and name != "view":
        for atom in (atom for axis in start for atom in axis if atom.size == 4):
            atom.split((2, 2))
    moved = axes_after(name, settings, start, after)
    assert moved is not None
    steps, places = strides(start), torch.zeros(after, dtype=torch.long)
    for axis, atoms in enumerate(moved):
        along = torch.zeros(1, dtype=torch.long)
        for atom in leaves(atoms):
            along = (along[:, None] + steps[atom] * torch.arange(atom.size)).flatten()
        places += along.reshape([-1 if axis == other else 1 for other in range(len(after))])
    assert torch.equal(places, run(torch.arange(prod(before)).reshape(before)))


@pytest.mark.parametrize(("name", "settings", "before", "after", "run"), LAYOUTS)
def test_axes_of_an_operand_are_those_that_become_the_results(name, settings, before, after, run):
    end = axes_of(after)
    start = axes_before(name, settings, end, before)
    assert start is not None and [prod(atom.size for atom in leaves(axis)) for axis in start] == list(before)
    again = axes_after(name, settings, start, after)
    assert again is not None and list(map(leaves, again)) == list(map(leaves, end))
