"""Sizes that are solved from their values in some runs: right at others too, and none that is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from tests.support.drawing import check_name, drawn_alike
from tracer.capture import record
from tracer.shapes import Solver, Vocabulary, solve
from tracer.shapes.probes import choose_sizes
from tracer.verify.checks.run import at

Size = Callable[..., int]

ELSEWHERE = ({"B": 101, "T": 389, "H": 66}, {"B": 70, "T": 444, "H": 93}, {"B": 29, "T": 611, "H": 512})

ONE: tuple[Size, ...] = (
    lambda t: t,
    lambda t: 1,
    lambda t: 2 * t,
    lambda t: 3 * t,
    lambda t: 11 * t,
    lambda t: t - 1,
    lambda t: t + 4,
    lambda t: 2 * t - 1,
    lambda t: 3 * t + 2,
    lambda t: t * t,
    lambda t: t**3,
    lambda t: t * t + 2,
    lambda t: 5 * t * (t + 1),
    lambda t: t * (t + 1) // 2 * 2,
    lambda t: 2 * (t // 2),
    lambda t: 3 * ((t + 1) // 2),
)
"""Sizes of one axis."""

DIVISORS = (2, 3, 4, 5, 6, 7, 8, 12, 14, 16, 32)
"""Strides and sides of patches, by which an axis is divided."""

SEVERAL: tuple[Size, ...] = (
    lambda b, t, h: b * t,
    lambda b, t, h: 2 * b * t,
    lambda b, t, h: b * t * h,
    lambda b, t, h: b * b * t,
    lambda b, t, h: b * t * t,
    lambda b, t, h: b * (t - 1),
    lambda b, t, h: b * (t // 2),
    lambda b, t, h: h * -(-t // 3),
    lambda b, t, h: 5 * b * (t + 1),
    lambda b, t, h: b * t + 1,
    lambda b, t, h: t + h,
    lambda b, t, h: t + h - 2,
    lambda b, t, h: b * (t + h),
    lambda b, t, h: t * (t + h),
    lambda b, t, h: b * t * (h + 1),
)
"""Sizes of several axes."""


def _solve(names: tuple[str, ...], runs: list[dict[str, int]], size: Size) -> str:
    *used, fresh = runs
    return Solver(names, {}, used, fresh).solve(tuple(size(*(at[name] for name in names)) for at in runs))


def _right() -> Iterator[str]:
    """Check that each size, from the runs that modules are probed at, has Python's value at others."""
    small = choose_sizes({"B": 2, "T": 7, "H": 9})
    cases: list[tuple] = [(("T",), small, size) for size in ONE] + [(("B", "T", "H"), small, size) for size in SEVERAL]
    for k, offset in [(stride, offset) for stride in DIVISORS for offset in (0, stride - 1, -3)]:
        near = ((6, 0, 5), (11, 1, 3), (17, 0, 8), (31, 1, 7), (9, 0, 4))  # multiples, and one less than a multiple
        runs = [{"T": k * n - less - offset, "B": b} for n, less, b in near]
        cases.append((("T",), runs, lambda t, k=k, c=offset: (t + c) // k))
        cases.append((("T", "B"), runs, lambda t, b, k=k, c=offset: b * ((t + c) // k)))
    for names, runs, size in cases:
        said = _solve(names, runs, size)
        for sizes in (*runs, *ELSEWHERE):
            own = {name: sizes[name] for name in names}
            if said == "?" or at(said, own) != size(*own.values()):
                yield f"{said} is solved from {[size(*map(run.get, names)) for run in runs]} over {names} at {runs}"
                break


def _quotients() -> Iterator[str]:
    """Check quotients of sizes that go into each other: N = H·W/P² and sizes derived from it."""
    names = ("H", "W", "P", "D", "h")
    runs = [
        dict(zip(names, row, strict=True))
        for row in ((24, 36, 4, 30, 5), (40, 16, 8, 42, 3), (18, 60, 3, 44, 4), (55, 35, 5, 26, 13), (14, 70, 7, 34, 2))
    ]
    cases: dict[str, Size] = {
        "H/P": lambda H, W, P, D, h: H // P,
        "D/h": lambda H, W, P, D, h: D // h,
        "H*W/P": lambda H, W, P, D, h: H * W // P,
        "H*D/h": lambda H, W, P, D, h: H * D // h,
        "3*D": lambda H, W, P, D, h: 3 * D,
        "4*D": lambda H, W, P, D, h: 4 * D,
        "H*W*D": lambda H, W, P, D, h: H * W * D,
    }
    for expected, size in cases.items():
        said = _solve(names, runs, size)
        other = {"H": 36, "W": 48, "P": 6, "D": 77, "h": 7}
        if said == "?" or at(said, other) != size(**other):
            yield f"{said} is solved from sizes that are {expected}"


def _declared_sizes() -> Iterator[str]:
    """Check that with a model's declared sizes an identity is one formula, in the order of its vocabulary; few runs are
    enough for packed tensors."""
    derived, names = {"d_k": "D/h", "N": "H*W/P**2"}, ("D", "h", "d_k", "N", "N + 1", "H", "W", "P")
    rows = ((12, 3, 8, 20, 4), (20, 2, 27, 9, 3), (42, 7, 10, 30, 5))
    runs = []
    for D, h, H, W, P in rows:
        runs.append({"D": D, "h": h, "d_k": D // h, "N": H * W // P**2, "H": H, "W": W, "P": P})
    expected = {
        "D": [run["D"] for run in runs],
        "d_k": [run["D"] // run["h"] for run in runs],
        "N": [run["H"] // run["P"] * (run["W"] // run["P"]) for run in runs],
        "N + 1": [run["N"] + 1 for run in runs],
        "D*d_k": [run["D"] * run["d_k"] for run in runs],
        "2*D": [run["D"] * 2 for run in runs],
        "3*D": [run["D"] * 3 for run in runs],
        "4*D": [run["D"] * 4 for run in runs],
        "P**2": [run["P"] ** 2 for run in runs],
        "P**3": [run["P"] ** 3 for run in runs],
        "H/P": [run["H"] // run["P"] for run in runs],
    }
    for formula, values in expected.items():
        for used in (runs[:2], runs):
            said = Solver(names, derived, used).solve(tuple(values[: len(used)]))
            if said != formula:
                yield f"{said} is solved from {values[: len(used)]} at {used}, expected {formula}"


def _unknown() -> Iterator[str]:
    """Check that sizes of no formula, or of several, or contradicted by another run, have no symbol."""
    four, lengths = [{"T": 20}, {"T": 10}, {"T": 33}, {"T": 27}], (20, 10, 33, 27)
    cases = {
        "one more in the last run": (("T",), four, {"T": 18}, (21, 11, 34, 28, 20)),
        "a number that the last run has not": (("T",), four, {"T": 18}, (5, 5, 5, 5, 6)),
        "a size that the last run has not": (("T",), four, {"T": 18}, (*lengths, 17)),
        "nonsense": (("T",), four, {"T": 18}, (101, 3, 77, 15, 8)),
        "nothing at all": (("T",), four, {"T": 18}, (15, 5, 28, 0, 13)),
        "two sizes that are one": (
            ("T", "S"),
            [{**at, "S": at["T"]} for at in four],
            {"T": 18, "S": 18},
            (*lengths, 18),
        ),
        "a size that never changes": (("C",), [{"C": 3}] * 4, {"C": 3}, (3, 3, 3, 3, 3)),
        "a size of two values": (("T",), [{"T": 4}, {"T": 7}, {"T": 4}], {"T": 7}, (14, 17, 14, 17)),
        "a quotient of three values": (("T",), [{"T": t} for t in (15, 20, 8, 25)], {"T": 9}, (2, 2, 1, 3, 1)),
    }
    for what, (names, runs, fresh, vector) in cases.items():
        said = Solver(names, {}, runs, fresh).solve(vector)
        if said != "?":
            yield f"{what}: {said} is solved from {vector} at {[*runs, fresh]}, expected ?"
    for vector, expected in (((5, 5, 5, 5, 5), "5"), ((*lengths, 18), "T"), ((21, 11, 34, 28, 19), "T + 1")):
        said = Solver(("T",), {}, four, {"T": 18}).solve(vector)
        if said != expected:
            yield f"{said} is solved from {vector} at {four} and 18, expected {expected}"


def _least() -> Iterator[str]:
    """Check how many different values are enough: three for a line or a sum, four for rounded sizes too."""
    runs = [{"T": t} for t in (35, 27, 62, 42, 37)]
    cases = {"T + 10": (45, 37, 72, 52, 47), "T + 1": (36, 28, 63, 43, 38), "floor(T/7)": (5, 3, 8, 6, 5)}
    for expected, vector in cases.items():
        said = Solver(("T",), {}, runs).solve(vector)
        if said != expected:
            yield f"{said} is solved from {vector} at {runs}, expected {expected}"
    for expected, vector in {"7*T": (28, 42), "3*T**2": (48, 108)}.items():
        said = Solver(("T",), {}, [{"T": 4}, {"T": 6}]).solve(vector)
        if said != expected:
            yield f"{said} is solved from {vector} at T = 4 and 6, expected {expected}"
    few = [{"T": 12, "S": 5}, {"T": 30, "S": 7}, {"T": 18, "S": 3}]
    cases = {"T/3": (4, 10, 6), "T - 11": (1, 19, 7), "2*T + 1": (25, 61, 37), "S + T": (17, 37, 21)}
    cases |= {"-S + T": (7, 23, 15), "S - T + 40": (33, 17, 25), "-S + T - 6": (1, 17, 9)}
    for expected, vector in cases.items():
        said = Solver(("T", "S"), {}, few).solve(vector)
        if said != expected:
            yield f"{said} is solved from {vector} at {few}, expected {expected}"


def _own() -> Iterator[str]:
    """Check that an op's own size is believed if it fits all runs, and none if ops contradict each other; two formulas
    of one value at any size are not a contradiction."""
    runs, fresh = [{"T": t} for t in (15, 20, 8, 25)], {"T": 9}
    thirds = tuple(at["T"] // 9 for at in (*runs, fresh))
    solver = Solver(("T",), {}, runs, fresh)
    if solver.solve(thirds) != "?" or solver.solve(thirds, ["floor(T/9)"]) != "floor(T/9)":
        yield "a quotient that its op says of itself is not believed"
    if solver.solve(thirds) != "floor(T/9)" or solver.ambiguous:
        yield "a quotient that its op said of itself is forgotten"
    if Solver(("T",), {}, runs, fresh).solve(thirds, ["floor((T + 1)/9)"]) != "?":
        yield "a quotient that an op says of itself does not fit the runs, and is believed"
    solver = Solver(("T",), {}, runs, fresh)
    halves = tuple(-(-at["T"] // 2) for at in (*runs, fresh))
    if solver.solve(halves, ["floor((T + 1)/2)"]) != "ceiling(T/2)" or solver.solve(halves, ["ceiling(T/2)"]) == "?":
        yield "two ops that say one size in two ways contradict each other"
    rest = tuple(at["T"] // 2 for at in (*runs, fresh))
    if solver.solve(rest) != "floor(T/2)":
        yield f"what is left of a half is {solver.solve(rest)}, expected floor(T/2)"
    squares = tuple(half**2 for half in halves)
    if solver.solve(squares) != "ceiling(T/2)**2" or Solver(("T",), {}, runs, fresh).solve(squares) != "?":
        yield f"the square of a size that was solved before is {solver.solve(squares)}"
    solver.reset()
    if solver.solve(tuple(half**2 + 1 for half in halves)) != "?":
        yield "a size that is to be solved again is made of others that were forgotten"
    quarters, fours = (3, 6, 9, 12), [{"T": t} for t in (12, 24, 36)]
    solver = Solver(("T",), {}, fours, {"T": 48})
    solver.solve(quarters, ["floor(T/4)"])
    other = solver.solve(quarters, ["floor(5*T/19)"])
    if solver.ambiguous != {quarters} or solver.solve(quarters) != "?":
        yield f"two ops say floor(T/4) and {other}, which the runs don't tell apart, and one of them is shown"
    solver.reset()
    if solver.solve(quarters, ["floor(T/4)"]) != "floor(T/4)" or solver.solve(quarters) != "?":
        yield "what two ops say differently is shown where neither says it"
    solver = Solver(("T",), {}, fours, {"T": 48})
    solver.solve(quarters, ["floor(T/4)"])
    solver.solve(quarters, ["floor((T + 1)/4)"])
    if solver.solve(quarters) != "T/4":
        yield f"⌊T/4⌋ and ⌊(T + 1)/4⌋ agree where 4 divides T, and {solver.solve(quarters)} is shown, expected T/4"


CHECKS = [_right, _quotients, _declared_sizes, _unknown, _own, _least]


@pytest.mark.parametrize("problems", CHECKS, ids=check_name)
def test_a_size_is_solved_if_it_is_right_at_others(problems):
    with drawn_alike():
        assert list(problems()) == []


def test_sizes_that_are_one_in_all_runs_keep_their_formulas():
    torch.manual_seed(0)
    layers = ((nn.Conv2d(2, 2, 3, 2, 1), nn.BatchNorm2d(2), nn.ReLU(inplace=True)) for _ in range(4))
    net = nn.Sequential(*(layer for group in layers for layer in group)).eval()
    probes = [{"H": 9, "W": 11}, {"H": 13, "W": 15}, {"H": 10, "W": 14}, {"H": 12, "W": 16}]
    vocabulary = Vocabulary(("H", "W"), {}, lambda at: (net, (torch.randn(1, 2, at["H"], at["W"]),)))
    run = record(net, (torch.randn(1, 2, 16, 16),))
    solution = solve(run, {"H": 16, "W": 16}, vocabulary, probes)
    assert solution.outputs[-1] == (("1", "2", "ceiling(H/16)", "ceiling(W/16)"),)
