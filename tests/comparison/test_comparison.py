"""Two runs, line by line: a planted mistake is the first difference, and equal lines are called equal."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

import tracer
from tracer.comparison import EquationRelation, Relation, compare_tensors
from tracer.tracing import PROVE_LATER

QUERY, KEY = "attention.query", "attention.key"


class Block(nn.Module):
    """A pre-norm block of one attention and one MLP; `[B, T, D]` in and out."""

    def __init__(self, D=12, h=3, fused=False):
        super().__init__()
        self.h, self.fused = h, fused
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.query, self.key, self.value, self.output = (nn.Linear(D, D) for _ in range(4))
        self.hidden, self.contract, self.activation = nn.Linear(D, 2 * D), nn.Linear(2 * D, D), nn.GELU()

    def forward(self, x):
        B, T, D = x.shape
        z = self.norm1(x)
        q, k, v = (layer(z).view(B, T, self.h, -1).transpose(1, 2) for layer in (self.query, self.key, self.value))
        if self.fused:
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-2, -1) / (D // self.h) ** 0.5).softmax(-1) @ v
        x = x + self.output(mixed.transpose(1, 2).reshape(B, T, D))
        return x + self.contract(self.activation(self.hidden(self.norm2(x))))


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Block().eval()


def run(net, seed=0, **how):
    """Trace a net on seeded numbers, with lazy proofs."""
    x = torch.randn(2, 5, 12, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return tracer.trace(net, x, symbols={"B": 0, "T": 1}, prove=PROVE_LATER, **how)


@pytest.fixture(scope="module")
def plain(net):
    return run(net)


def edit_copy(net, edit):
    """Return a copy of a net with an edit."""
    net = copy.deepcopy(net)
    with torch.no_grad():
        edit(net)
    return net


def row(comparison, end):
    """Return the row of the line whose id ends with a suffix."""
    (found,) = [row for row in comparison.rows if row.id.endswith(end)]
    return found


def test_a_run_equals_itself(net, plain):
    comparison = tracer.compare(plain, run(net))
    assert comparison.equal and comparison.first is None
    assert {one.values.relation for one in comparison.rows} == {Relation.IDENTICAL}
    assert {one.equations for one in comparison.rows} == {EquationRelation.SAME}
    assert all(one.same_shape and one.same_symbols and not one.alone for one in comparison.rows)
    assert comparison.counts() == {"equal bit by bit": len(plain.steps)}
    assert [one.values.difference for one in comparison.attention] == [0.0]


def test_one_changed_weight_is_found_in_its_line(net, plain):
    def edit(net):
        net.key.weight[3, 4] += 0.5

    comparison = tracer.compare(plain, run(edit_copy(net, edit)))
    assert not comparison.equal
    assert comparison.first.id.endswith(KEY)
    difference = (plain.value(comparison.first.a) - comparison.b.value(comparison.first.b)).abs().max().item()
    assert comparison.first.values.difference == pytest.approx(difference)
    assert comparison.first.equations is EquationRelation.SAME
    assert comparison.output.relation is Relation.DIFFERENT and comparison.attention[0].values.difference > 0


def test_exchanged_queries_and_keys_are_found_in_values_and_in_the_equation(net, plain):
    def edit(net):
        net.query, net.key = net.key, net.query

    comparison = tracer.compare(plain, run(edit_copy(net, edit)))
    assert comparison.first.id.endswith(QUERY)

    class Exchanged(Block):
        def forward(self, x):
            self.query, self.key = self.key, self.query
            try:
                return super().forward(x)
            finally:
                self.query, self.key = self.key, self.query

    exchanged = Exchanged().eval()
    exchanged.load_state_dict(net.state_dict())
    comparison = tracer.compare(plain, run(exchanged))
    assert comparison.first.id.endswith(QUERY) and comparison.first.equations is EquationRelation.DIFFERENT


def test_a_replaced_op_is_found_in_its_line(net, plain):
    def edit(net):
        net.activation = nn.ReLU()

    first = tracer.compare(plain, run(edit_copy(net, edit))).first
    assert first.a.latex.startswith(first.b.symbol) and "GELU" in first.a.latex and "ReLU" in first.b.latex
    assert first.equations is EquationRelation.DIFFERENT


def test_a_replaced_op_is_found_where_no_value_was_kept(net):
    def edit(net):
        net.activation = nn.ReLU()

    comparison = tracer.compare(run(net, keep=0), run(edit_copy(net, edit), keep=0))
    assert comparison.first.values.relation is Relation.MISSING and "ReLU" in comparison.first.b.latex
    assert "not kept in a and b" in comparison.first.values.note


def test_another_input_differs_from_the_first_line_on(net, plain):
    comparison = tracer.compare(plain, run(net, seed=1))
    assert comparison.first is comparison.rows[0] and not any(one.values.relation.equal for one in comparison.rows)
    assert {one.equations for one in comparison.rows} == {EquationRelation.SAME}


def test_eager_and_fused_attention_are_equal_with_what_the_kernel_never_held(net, plain):
    fused = Block(fused=True).eval()
    fused.load_state_dict(net.state_dict())
    trace = run(fused)
    assert any(step.recomputed for step in trace.steps)
    comparison = tracer.compare(plain, trace)
    assert comparison.equal and not any(one.alone for one in comparison.rows)
    assert row(comparison, "weights").values.relation.equal
    both = tracer.compare(trace, run(fused))
    assert both.equal and row(both, "weights").values.note == "inside a fused op in both runs"


def test_heads_in_another_order_are_a_permutation(net, plain):
    order = torch.tensor([2, 0, 1])

    def edit(net):
        for layer in (net.query, net.key, net.value):
            layer.weight.copy_(layer.weight.view(3, 4, 12)[order].reshape(12, 12))
            layer.bias.copy_(layer.bias.view(3, 4)[order].flatten())
        net.output.weight.copy_(net.output.weight.view(12, 3, 4)[:, order].reshape(12, 12))

    comparison = tracer.compare(plain, run(edit_copy(net, edit)))
    assert comparison.first.values.relation is Relation.PERMUTED and "axis 1" in comparison.first.values.note
    assert comparison.output.relation.equal and row(comparison, "attention.output").values.relation.equal


def test_a_changed_line_stands_beside_the_line_that_it_changes(net, plain):
    (line,) = [step.id for step in plain.steps if step.id.endswith("weights")]
    changed = run(net, change={line: "scale(0.5)"})
    comparison = tracer.compare(plain, changed)
    assert comparison.first.id == f"{line}.changed" and comparison.first.a is None and comparison.first.alone
    assert comparison.first.values.relative == pytest.approx(0.5) and comparison.first.beside.id == line
    assert [one.id for one in comparison.rows if one.alone] == [f"{line}.changed"]
    assert row(comparison, "context").equations is EquationRelation.DIFFERENT
    assert tracer.compare(changed, changed).equal


def test_two_models_are_aligned_by_what_their_lines_are(net, plain):
    class Renamed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleDict({"first": copy.deepcopy(net)})

        def forward(self, x):
            return self.inner["first"](x)

    comparison = tracer.compare(plain, run(Renamed().eval()))
    assert comparison.equal and not any(one.alone for one in comparison.rows)
    assert any(one.a.id != one.b.id for one in comparison.rows)
    assert {one.equations for one in comparison.rows} <= {EquationRelation.SAME, EquationRelation.RESPELLED}


def test_saved_runs_are_compared_without_their_model(net, plain, tmp_path):
    plain.save(tmp_path / "a.safetensors")
    run(net, seed=1).save(tmp_path / "b.safetensors")
    a, b = (tracer.open(tmp_path / f"{name}.safetensors") for name in "ab")
    assert tracer.compare(plain, a).equal
    assert tracer.compare(a, b).first.values == tracer.compare(plain, run(net, seed=1)).first.values


def test_the_table_has_a_row_for_each_line(net, plain):
    frame = tracer.compare(plain, run(net, seed=1)).table()
    assert list(frame["a"]) == [step.id for step in plain.steps]
    assert set(frame["values"]) == {"different"} and (frame["relative"] > 0).all()
    assert frame["shape_a"][0] == list(plain.steps[0].shape)


@pytest.mark.parametrize("fill", [-1e4, -1e9, -1e20, -torch.inf])
def test_a_large_number_of_a_mask_hides_no_other_scores(fill):
    scores = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(0))
    hidden = torch.ones(5, 5).triu(1).bool()
    masked, moved, rounded = (x.masked_fill(hidden, fill) for x in (scores, scores + 0.2, scores * (1 + 1e-7)))
    assert compare_tensors(masked, moved).relation is Relation.DIFFERENT
    assert compare_tensors(masked, rounded).relation is Relation.ROUNDING
    assert compare_tensors(scores, masked).relation is compare_tensors(masked, scores).relation is Relation.DIFFERENT


def test_what_is_no_trace_is_refused_in_a_sentence(plain):
    with pytest.raises(ValueError, match="'vit' is not a trace, expected"):
        tracer.compare(plain, "vit")


def test_runs_of_which_nothing_is_left_are_not_called_equal(plain):
    empty = dataclasses.replace(plain, values={}, output=None, later=None)
    comparison = tracer.compare(empty, empty)
    assert not comparison.equal and comparison.first is None
    assert comparison.counts() == {"not kept": len(plain.steps)}


class Cellwise(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self._forward = forward

    def forward(self, x):
        return self._forward(x)


FAR = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)).index_put(
    (torch.tensor(0),) * 3, torch.tensor(3e5)
)


@pytest.mark.parametrize(
    ("first", "second", "x"),
    [
        (lambda x: x + x.tanh(), lambda x: x + x.sin(), FAR),
        (lambda x: x * 1.0, lambda x: x * 1.02, FAR.bfloat16()),
        (lambda x: nn.functional.gelu(x * 3), lambda x: nn.functional.relu(x * 3), FAR.clamp(max=13).bfloat16()),
    ],
)
def test_large_cells_hide_no_others(first, second, x):
    a, b = (tracer.trace(Cellwise(function), x) for function in (first, second))
    comparison = tracer.compare(a, b)
    assert not comparison.equal and comparison.first.values.relation is Relation.DIFFERENT
    assert "times what rounding explains" in comparison.first.values.note == comparison.output.note
    assert tracer.compare(a, tracer.trace(Cellwise(first), x.double())).equal


def test_lines_that_inherit_rounding_are_equal(net):
    deep = nn.Sequential(*(copy.deepcopy(net) for _ in range(3)))
    x = torch.randn(2, 5, 12)
    a, b = tracer.trace(deep, x), tracer.trace(copy.deepcopy(deep).double(), x.double())
    comparison = tracer.compare(a, b)
    assert comparison.equal and comparison.counts() == {"equal up to rounding": len(a.steps)}


def test_a_notebook_shows_two_runs_line_by_line(net, plain):
    def edit(net):
        net.key.weight[3, 4] += 0.5

    page = tracer.compare(plain, run(edit_copy(net, edit)))._repr_html_()
    first = next(step.id for step in plain.steps if step.id.endswith(KEY))
    assert f"The first difference: {first}." in page
    assert page.count("<tr>") == 1 + len(plain.steps) and page.count("<math") == 2 * len(plain.steps)


class Added(torch.nn.Module):
    """A function of a linear map, beside its input."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.function = torch.nn.Linear(16, 16), function

    def forward(self, x):
        return self.function(self.enter(x)) + x


def test_files_are_compared_cell_by_cell_where_equations_differ(tmp_path):
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    x[0, 0, 0] = 3e5  # beside which all other numbers are small

    def saved(name, function, inputs):
        tracer.trace(Added(function), inputs).save(tmp_path / name)
        return tracer.open(tmp_path / name)

    first, other = saved("a.safetensors", torch.tanh, x), saved("b.safetensors", torch.sin, x)
    comparison = tracer.compare(first, other)
    assert not comparison.equal and "of its size" in comparison.first.values.note
    again = tracer.compare(first, saved("c.safetensors", torch.tanh, x.double().mul(1 + 1e-8).float()))
    assert again.equal
    near = tracer.compare(first, saved("d.safetensors", torch.tanh, x + 1e-6))
    assert near.equal and {row.values.note for row in near.rows} == {
        "compared by the largest number: a file has no bound for each cell"
    }
