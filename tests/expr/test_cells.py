"""Cells that a cell depends on: as gradients show, for every node; and the contribution of each."""

import pytest
import sympy
import torch

from tests.support.node_examples import Example, examples
from tracer import expr
from tracer.expr import Node
from tracer.expr.index_sets import (
    MAX_TERMS,
    IndexSet,
    TooMany,
    through_pattern,
)
from tracer.symbols.axes import merge_axes, normalise_axis, split_axis

EXAMPLES = examples()


def _below(kind: type) -> set[type]:
    return {kind, *(node for one in kind.__subclasses__() for node in _below(one))}


NODES = {
    kind
    for kind in _below(Node)
    if kind.__module__.startswith("tracer.expr.")
    and not kind.__name__.startswith("_")
    and kind not in (Node, expr.Tensor, expr.Opaque)  # which refuses to run
}
WITHOUT_OPERANDS = {
    *(
        "CausalMask",
        "CausalMaskBetween",
        "Triangle",
        "Arange",
        "ArangeFrom",
        "Head",
        "PositionIds",
        "Distances",
        "Identity",
        "PrefixMask",
        "Scalar",
        "Sinusoids",
    ),
}
BY_DEFAULT = {"MaskedScatter", "NanToNum", "Kernel", "Nonzero", "IsContiguous", "IndexPut", "Scatter", "Scan"}
"""Nodes that say of a cell that all cells of all operands have a part in it: more than is true."""


def size(expression) -> float:
    return float(sympy.sympify(expression))


def draw_operands(example: Example, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [draw() for draw in example.draws]


def choose_cells(shape, seed: int, most: int = 1) -> IndexSet:
    """Choose some cells of a tensor: up to `most` indices along each axis."""
    generator = torch.Generator().manual_seed(seed)

    def of(n: int) -> list[int]:
        count = int(torch.randint(1, min(most, n) + 1, (), generator=generator))
        return torch.randperm(n, generator=generator)[:count].tolist()

    return IndexSet.of(shape, map(of, shape))


def indicator(cells: IndexSet) -> torch.Tensor:
    """Return 1 in these cells, else 0."""
    made = torch.zeros(cells.shape, dtype=torch.bool)
    for index in cells:
        made[index] = True
    return made


def gradients(node: Node, tensors, cells: IndexSet) -> list[torch.Tensor | None]:
    """Return where the gradient of a random sum of these cells is not 0, for each operand that has one."""
    wanted = [x.detach().requires_grad_() if x.dtype.is_floating_point or x.is_complex() else x for x in tensors]
    made = node.run(size, *wanted)
    if not made.requires_grad:
        return [None] * len(tensors)
    weights = torch.rand(made.shape, dtype=torch.float64) + 0.5
    parts = (made * weights)[indicator(cells)]
    total = parts.real.sum() + parts.imag.sum() if parts.is_complex() else parts.sum()
    if not total.requires_grad:
        return [None] * len(tensors)
    found = [x for x in wanted if x.requires_grad]
    grads = iter(torch.autograd.grad(total, found, allow_unused=True))
    return [
        None if not x.requires_grad else torch.zeros(x.shape) != 0 if (g := next(grads)) is None else g != 0
        for x in wanted
    ]


def test_places_along_an_axis_are_a_range_where_they_are_one():
    assert (
        normalise_axis([4, 2, 3]) == range(2, 5)
        and normalise_axis([6, 0, 3]) == range(0, 7, 3)
        and normalise_axis([5]) == range(5, 6)
    )
    assert normalise_axis({9, 1, 2}) == (1, 2, 9) and normalise_axis([]) == ()


def test_a_union_is_widened_to_a_product_of_places_and_no_more():
    one, other = IndexSet.single((4, 5), (0, 1)), IndexSet.single((4, 5), (2, 3))
    assert set(one | other) == {(0, 1), (0, 3), (2, 1), (2, 3)}
    assert one | IndexSet.none((4, 5)) == one == IndexSet.none((4, 5)) | one
    assert (
        IndexSet.all((4, 5)) | other == IndexSet.all((4, 5))
        and IndexSet.all(()).count == 1
        and IndexSet.none(()).count == 0
    )


@pytest.mark.parametrize("axis", [range(12), range(4, 8), range(3, 7), range(0, 12, 4), (1, 2, 11), range(5, 6)])
def test_an_axis_is_made_of_others_as_numbers_are_of_digits(axis):
    digits = [{i // 4 for i in axis}, {i // 2 % 2 for i in axis}, {i % 2 for i in axis}]
    parts = split_axis(axis, (3, 2, 2))
    assert [set(part) for part in parts] == digits
    assert set(merge_axes(parts, (3, 2, 2))) == {
        4 * a + 2 * b + c for a in digits[0] for b in digits[1] for c in digits[2]
    }


def test_nothing_is_listed_cell_by_cell():
    """Sets of a large tensor, moved through layouts, in no time and no memory."""
    shape = (2**20, 2**20)
    tall = IndexSet.of(shape, (range(2**10, 2**19), None))

    def behind(cells: IndexSet, pattern: str, shape, **sizes: int) -> IndexSet:
        (read,) = through_pattern(cells, pattern, [shape], sizes)
        return read

    assert behind(tall, "a b -> b a", shape) == IndexSet.of(shape, (None, range(2**10, 2**19)))
    flat = IndexSet.of((2**40,), [range(2**21, 2**22)])
    assert behind(flat, "a b -> (a b)", shape) == IndexSet.of(shape, [(2, 3), None])
    assert behind(tall, "(a b) -> a b", (2**40,), a=2**20) == IndexSet.of((2**40,), [range(2**30, 2**39)])


def test_more_terms_than_are_listed_are_an_error_and_no_list():
    node = expr.Kernel.of("aten.tanh.default", {"self": expr.Tensor("x", (), "x")}, 0, (1,))
    with pytest.raises(TooMany, match=f"more than {MAX_TERMS:,} cells are read"):
        node.contributions(size, (0,), torch.zeros(MAX_TERMS + 1))


def test_every_node_has_an_example():
    assert {type(example.node) for example in EXAMPLES.values()} == NODES


def test_a_pattern_names_the_axes_that_a_cell_reads():
    """Of few axes the last, of more operands than are named the last one, and indices that an operand stores."""
    cells = IndexSet.single((2, 3, 4), (1, 2, 3))
    x, row, number = through_pattern(cells, "... k, ... d -> ... d", [(2, 3, 4), (4,), ()], {})
    assert x.axes == (range(1, 2), range(2, 3), range(4)) and row.axes == (range(3, 4),) and number.axes == ()
    x, _ = through_pattern(cells, "b *, c -> b c ...", [(2, 5, 6), (1,)], {})
    assert x.axes == (range(1, 2), range(5), range(6))
    places = torch.tensor([[4, 0, 1], [2, 3, 0]])
    row, where = through_pattern(cells, "[n] d, ... -> ... d", [(5, 4), places], {})
    assert row.axes == (range(0, 1), range(3, 4)) and where.axes == (range(1, 2), range(2, 3))
    ends = IndexSet.of((2, 8), ((0,), (1, 6)))
    assert through_pattern(ends, "b (r d) -> b (r d)", [(2, 8)], {"r": 2}) == (ends,), "and no cell between them"


def test_these_nodes_know_nothing_better_than_all():
    default = Node._dependencies, Node.pattern, ""
    nothing = {kind.__name__ for kind in NODES if (kind._dependencies, kind.pattern, kind.reads) == default}
    assert nothing == BY_DEFAULT | WITHOUT_OPERANDS


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_read_is_what_has_a_gradient(name):
    example = EXAMPLES[name]
    for seed in range(6):
        tensors = draw_operands(example, seed)
        cells = choose_cells(example.node.run(size, *tensors).shape, seed, most=1 if seed < 4 else 2)
        read = example.node.dependencies(size, cells, *tensors)
        assert [one.shape for one in read] == [tuple(x.shape) for x in tensors]
        for one, grad in zip(read, gradients(example.node, tensors, cells), strict=True):
            if grad is not None:
                assert not (grad & ~indicator(one)).any(), "a number that moves the cells is read"
                if example.exact and cells.count == 1:
                    assert torch.equal(grad, indicator(one)), "no other is"
        wider = example.node.dependencies(size, cells, *(tuple(x.shape) for x in tensors))
        for one, wide in zip(read, wider, strict=True):
            assert not (indicator(one) & ~indicator(wide)).any(), "shapes alone allow for any numbers"


@pytest.mark.parametrize("name", [name for name, example in EXAMPLES.items() if example.draws])
def test_what_is_not_read_has_no_part_in_it(name):
    """Other numbers wherever nothing is read: also where there is no gradient, as of places and of comparisons."""
    example = EXAMPLES[name]
    for seed in range(6):
        tensors, others = draw_operands(example, seed), draw_operands(example, seed + 100)
        made = example.node.run(size, *tensors)
        cells = choose_cells(made.shape, seed, most=2)
        read = example.node.dependencies(size, cells, *tensors)
        mixed = [torch.where(indicator(one), x, other) for one, x, other in zip(read, tensors, others, strict=True)]
        if name == "Put":  # no place twice in a row
            mixed[1] = tensors[1]
        again = example.node.run(size, *mixed)
        assert torch.allclose(made[indicator(cells)], again[indicator(cells)], rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", EXAMPLES)
def test_nothing_is_made_of_nothing(name):
    example = EXAMPLES[name]
    tensors = draw_operands(example, 0)
    none = IndexSet.none(example.node.run(size, *tensors).shape)
    assert all(one.axes is None for one in example.node.dependencies(size, none, *tensors))


@pytest.mark.parametrize("name", EXAMPLES)
def test_terms_are_numbers_that_are_read_and_their_shares_add_up(name):
    example = EXAMPLES[name]
    said = 0
    for seed in range(4):
        tensors = draw_operands(example, seed)
        made = example.node.run(size, *tensors)
        (index,) = choose_cells(made.shape, seed)
        read = example.node.dependencies(size, IndexSet.single(made.shape, index), *tensors)
        terms = example.node.contributions(size, index, *tensors)
        assert {(term.operand, term.index) for term in terms} == {(i, at) for i, one in enumerate(read) for at in one}
        assert len({(term.operand, term.index) for term in terms}) == len(terms)
        for term in terms:
            assert term.value == tensors[term.operand][term.index].item()
            if term.factor is not None:
                assert term.share == pytest.approx(term.factor * term.value)
        counted = [term.share for term in terms if term.counted]
        if terms and None not in counted:
            assert sum(counted) == pytest.approx(made[index].item(), rel=1e-9, abs=1e-12)
            said += 1
    assert said or not example.draws or name in WITHOUT_SHARES


def test_what_scales_in_a_norm_has_the_share_of_what_it_scales():
    node, tensors = EXAMPLES["BatchNorm"].node, draw_operands(EXAMPLES["BatchNorm"], 0)
    made = node.run(size, *tensors)
    (index,) = choose_cells(made.shape, 0)
    terms = node.contributions(size, index, *tensors)
    (shift,) = (term.share for term in terms if term.operand == 4)
    shares = [term.share for term in terms if not term.counted]
    assert shares == pytest.approx([made[index].item() - shift] * 2)


WITHOUT_SHARES = BY_DEFAULT | {
    *("AllOf", "AnyOf", "Index 5", "ArgMax", "ArgMin", "ArgTopK", "Std", "FirstOf", "CountNonzero", "Norm"),
    *("LogSoftmax", "LogSumExp", "OneHot", "Pairs", "RealAndImaginary", "Prod", "CumProd", "ArgSort"),
    *("Scan 2", "Variance"),
    *(f"{name}{number}" for name in ("LSTM", "GRU", "RNN") for number in ("", " 2", " 3")),
    *("LSTM 4", "LSTM 5", "LSTM 6"),
}
"""Nodes whose terms say which numbers have a part in a cell, and not how much."""


def test_only_these_terms_are_without_shares():
    found = set()
    for name, example in EXAMPLES.items():
        tensors = draw_operands(example, 0)
        made = example.node.run(size, *tensors)
        terms = example.node.contributions(size, next(iter(choose_cells(made.shape, 0))), *tensors)
        if terms and any(term.counted and term.share is None for term in terms):
            found.add(name)
    assert found == WITHOUT_SHARES


def test_a_factor_is_a_gradient_where_there_is_one():
    for name, example in EXAMPLES.items():
        tensors = draw_operands(example, 1)
        wanted = [x.requires_grad_() if x.dtype == torch.float64 else x for x in tensors]
        made = example.node.run(size, *wanted)
        if not made.requires_grad or made.is_complex():
            continue
        (index,) = choose_cells(made.shape, 1)
        grads = torch.autograd.grad(made[index], [x for x in wanted if x.requires_grad], allow_unused=True)
        grads = iter(grads)
        by = [next(grads) if x.requires_grad else None for x in wanted]
        for term in example.node.contributions(size, index, *(x.detach() for x in wanted)):
            if term.factor is not None and by[term.operand] is not None:
                assert by[term.operand][term.index].item() == pytest.approx(term.factor), (name, term)


def test_numbers_that_are_none_or_far_out_are_no_error():
    x = expr.Tensor("x", (), "x")
    nan, pool = float("nan"), {"window": (2,), "stride": (2,), "padding": (0,), "dilation": (1,), "up": False}
    terms = expr.MaxPool(x, **pool).contributions(size, (0, 0), torch.tensor([[nan, 1.0]]))
    assert [term.share for term in terms] == [None, None]
    gated = expr.GLU(x, axes=(0,), labels=None).contributions(size, (0,), torch.tensor([2.0, -5000.0]))
    assert [term.share for term in gated] == pytest.approx([0, 0])
    masked = expr.Softmax(x).contributions(size, (0,), torch.full((3,), -float("inf")))
    assert all(term.share != term.share for term in masked)
    flat = [torch.ones(1, 1), torch.ones(1), torch.zeros(1)]
    names = [expr.Tensor(letter, (), letter) for letter in "xmv"]
    norm = expr.BatchNorm(*names, eps=0.0, affine=None, wide=False)
    assert [term.share for term in norm.contributions(size, (0, 0), *flat)] == [None] * 3
