"""Symbolic shapes are solved from runs, never guessed: what does not solve, or solves two ways, is `?`."""

import functools
from queue import SimpleQueue

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tracer
from tests.support.hazards import FusedAttention
from tests.support.sweeping import cases
from tracer import models
from tracer.capture import Recording
from tracer.models.vit import SPEC
from tracer.shapes import Solver, Vocabulary, solve, value_of
from tracer.shapes.probes import SIZES
from tracer.spec.spec import build_seeded
from tracer.symbols.notation import latex, parse, text

CONFIGURATIONS = [
    {"B": 2, "N": 15, "D": 7, "h": 3},
    {"B": 5, "N": 8, "D": 11, "h": 2},
    {"B": 1, "N": 6, "D": 12, "h": 4},
]
NAMES = ("B", "D", "N", "N + 1", "h")


@pytest.fixture
def solver():
    return Solver(NAMES, {}, CONFIGURATIONS)


FORMULAS = ["B", "N + 1", "3*D", "B*N", "B*(N + 1)", "D**2", "B*N*D", "B*h"]


@pytest.mark.parametrize("formula", FORMULAS)
def test_a_formula_is_found_from_its_values(solver, formula):
    found = solver.solve(tuple(value_of(formula, sizes) for sizes in CONFIGURATIONS))
    assert parse(found) - parse(formula) == 0


def test_a_literal_is_a_literal_and_nonsense_is_unknown(solver):
    assert solver.solve((1, 1, 1)) == "1"
    assert solver.solve((3, 3, 3)) == "3"
    assert solver.solve((101, 3, 77)) == "?"


def test_two_formulas_with_the_same_values_are_unknown():
    ambiguous = Solver(("N", "D"), {}, [{"N": 4, "D": 4}, {"N": 6, "D": 6}])
    assert ambiguous.solve((4, 6)) == "?"
    constant = Solver(("C", "D"), {}, [{"C": 3, "D": 4}, {"C": 3, "D": 6}])
    assert constant.solve((3, 3)) == "?"


def test_an_identity_is_no_ambiguity():
    sizes = [{"D": 6, "h": 3, "d_k": 2}, {"D": 10, "h": 2, "d_k": 5}]
    assert Solver(("D", "h", "d_k"), {"d_k": "D/h"}, sizes).solve((6, 10)) == "D"
    assert Solver(("D", "h", "d_k"), {}, sizes).solve((6, 10)) == "?"


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["B", "N", "D", "h"]), min_size=1, max_size=3), st.sampled_from([1, 2, 3]))
def test_no_solution_contradicts_a_run(factors, factor):
    formula = "*".join([*factors, str(factor)] if factor > 1 and len(factors) == 1 else factors)
    vector = tuple(int(value_of(formula, sizes)) for sizes in CONFIGURATIONS)
    found = Solver(NAMES, {}, CONFIGURATIONS).solve(vector)
    assert found == "?" or tuple(value_of(found, sizes) for sizes in CONFIGURATIONS) == vector


@pytest.mark.parametrize("probes", [(SPEC.sizes, *SPEC.probes)], ids=["vit"])
def test_probe_sizes_are_all_distinct(probes):
    for sizes in probes[1:]:
        full = {**sizes, "N": sizes["H"] * sizes["W"] // sizes["P"] ** 2, "d_k": sizes["D"] // sizes["h"]}
        values = [*full.values(), full["N"] + 1, sizes["H"] // sizes["P"], sizes["W"] // sizes["P"]]
        assert len(set(values)) == len(values)


@pytest.mark.parametrize("batch", [1, 3])
def test_every_dimension_of_vit_is_solved_and_right(batch):
    trace = tracer.load("vit").trace(batch=batch)
    sizes = {symbol.name: symbol.value for symbol in trace.symbols}
    assert sizes["B"] == batch
    for op in trace.ops:
        for tensor in (*op.inputs, *op.outputs):
            assert "?" not in tensor.symbolic
            assert tuple(value_of(size, sizes) for size in tensor.symbolic) == tensor.shape


def test_ops_that_only_some_batches_have_say_so():
    trace = tracer.load("vit").trace(batch=3)
    assert all(not op.note for op in trace.ops)  # the probes copy too: nothing to hold
    net = FusedAttention()
    trace = tracer.trace(net, torch.randn(1, 7, 12), symbols={"B": 0, "S": 1})
    assert {size for op in trace.ops for t in op.outputs for size in t.symbolic} >= {"B", "S"}
    assert all("B held at 1" in op.note for op in trace.ops if op.note)


PROBED = [SPEC.sizes | {"B": 1}, *({**SPEC.sizes, **p} for p in SPEC.probes)]


@pytest.mark.parametrize("sizes", cases(PROBED, PROBED[:2]), ids=str)
def test_cost_formulas_equal_torch_at_every_probed_size(sizes):
    trace = tracer.load("vit").trace(prove=False)
    net = build_seeded(SPEC.net, {name: size for name, size in sizes.items() if name != "B"})
    full = {**sizes, "N": sizes["H"] * sizes["W"] // sizes["P"] ** 2, "d_k": sizes["D"] // sizes["h"]}
    assert value_of(trace.params_symbolic, full) == sum(p.numel() for p in net.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net.to("meta")(torch.empty(sizes["B"], sizes["C"], sizes["H"], sizes["W"], device="meta"))
    assert value_of(trace.flops_symbolic, full) == counter.get_total_flops()


def test_fused_attention_of_the_cpu_is_counted():
    net, x = FusedAttention(), torch.randn(2, 7, 12)
    trace = tracer.trace(net, x, symbols={"B": 0, "S": 1})
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        FusedAttention().to("meta")(x.to("meta"))
    assert trace.flops == counter.get_total_flops() > 0
    assert value_of(trace.flops_symbolic, {"B": 2, "S": 7}) == trace.flops


def test_named_axes_of_any_module_are_solved():
    layer = nn.TransformerEncoderLayer(12, 3, 20, batch_first=True).eval()
    trace = tracer.trace(layer, torch.randn(2, 7, 12), symbols={"B": 0, "T": ("src", 1)})
    assert trace.ops[-1].outputs[0].symbolic == ("B", "T", "12")
    assert {(s.name, s.value) for s in trace.symbols} == {("B", 2), ("T", 7)}


def test_build_gives_the_modules_own_sizes_symbols_too():
    def build(sizes):
        return nn.Linear(sizes["D"], 3 * sizes["D"]), (torch.randn(sizes["B"], sizes["D"]),)

    trace = tracer.trace(nn.Linear(5, 15), torch.randn(4, 5), symbols={"B": 0, "D": 1}, build=build)
    assert trace.ops[-1].outputs[0].symbolic == ("B", "3*D")
    assert trace.params_symbolic in ("3*D**2 + 3*D", "3*D*(D + 1)")


def attend_to_source(src, tgt, causal):
    return torch.softmax(tgt @ src.transpose(1, 2), -1) @ src + causal @ tgt


def test_one_size_is_named_on_some_of_the_inputs():
    args = torch.randn(2, 6, 4), torch.randn(2, 5, 4), torch.ones(1, 5, 5).tril()
    run = tracer.trace(attend_to_source, *args, symbols={"B": [("src", 0), ("tgt", 0)], "T": ("src", 1)})
    assert {step.symbolic[0] for step in run.steps} == {"B"} and run.steps[-1].symbolic == ("B", "5", "4")
    with pytest.raises(ValueError, match=r"2 in axis 0 of 'src' and 1 in .*'causal'.*\[\('src', 0\), \('tgt', 0\)\]"):
        tracer.trace(attend_to_source, *args, symbols={"B": 0})
    with pytest.raises(ValueError, match="or a list of these"):
        tracer.trace(attend_to_source, *args, symbols={"B": [("src", "0")]})


def test_build_may_return_a_function():
    def build(sizes):
        return attend_to_source, (torch.randn(sizes["B"], 6, 4), torch.randn(sizes["B"], 5, 4), args[2])

    args = torch.randn(2, 6, 4), torch.randn(2, 5, 4), torch.ones(1, 5, 5).tril()
    run = tracer.trace(attend_to_source, *args, symbols={"B": ("src", 0)}, build=build)
    assert run.notes == () and {step.symbolic[0] for step in run.steps} == {"B"}


def test_an_axis_that_the_inputs_lack_is_refused_in_words():
    with pytest.raises(ValueError, match=r"'T' is said to be axis \('text', 1\).*input \[4, 5\]"):
        tracer.trace(nn.Linear(5, 3), torch.randn(4, 5), symbols={"T": ("text", 1)})


def test_a_model_that_runs_at_one_size_only_keeps_numbers_and_says_why():
    class OneSize(nn.Module):
        def forward(self, x):
            if x.shape != (4, 5):
                raise ValueError("four by five it must be")
            return x * 2

    trace = tracer.trace(OneSize(), torch.randn(4, 5), symbols={"B": 0})
    assert trace.ops[0].outputs[0].symbolic is None
    assert "four by five it must be" in trace.notes[0]


WRITTEN_FORMULAS = [
    ("C*P**2", "P²·C", r"P^{2}\,C"),
    ("d_k*h", "h·d_k", r"h\,d_k"),
    ("N + 1", "N+1", "N + 1"),
    ("B*(N + 1)", "B·(N+1)", r"B\,\left(N + 1\right)"),
    ("H/P", "H/P", r"\frac{H}{P}"),
    ("d_ff", "d_ff", r"d_{\mathrm{ff}}"),
    ("?", "?", "?"),
]


@pytest.mark.parametrize(("formula", "plain", "typeset"), WRITTEN_FORMULAS)
def test_sizes_are_written_in_the_fields_order(formula, plain, typeset):
    assert text(formula) == plain
    assert latex(formula) == typeset


HOSTILE = ["__import__('os')", "N.real", "N if 1 else 2", "[N]", "N +", "1.5", "f(N)", "(" * 500]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_only_formulas_over_sizes_are_parsed(hostile):
    with pytest.raises(ValueError, match="is not a formula over sizes"):
        parse(hostile)


SINGLE = ["{a}", "7*{a}", "{a} - 1", "{a} + 4", "2*{a} - 1", "{a}**2"]
SINGLE += [f"{kind}({{a}}/{k})" for kind in ("floor", "ceiling") for k in (2, 3, 4)]
TOGETHER = ["2*{a}*{b}", "{a}*({b} - 1)", "{a}*ceiling({b}/2)", "{a} + {b}", "{a}*{b} + 1", "5*{a}*({b} + 1)"]
TRUTHS = [text.format(a=a) for a in "BTH" for text in SINGLE]
TRUTHS += [text.format(a=a, b=b) for a, b in (("B", "T"), ("T", "B"), ("T", "H")) for text in TOGETHER]


@pytest.mark.parametrize("truth", TRUTHS)
def test_the_sizes_of_probes_tell_every_expression_from_every_other(truth):
    *runs, fresh = ({name: row[i] for name, row in zip("BTH", SIZES, strict=False)} for i in range(len(SIZES[0])))
    found = Solver(("B", "T", "H"), {}, runs, fresh).solve(tuple(int(value_of(truth, at)) for at in (*runs, fresh)))
    for at in ({"B": 101, "T": 87, "H": 66}, {"B": 70, "T": 44, "H": 93}):
        assert found != "?" and value_of(found, at) == value_of(truth, at)


def test_sizes_of_probes_lie_between_8_and_61_and_differ_in_each_run():
    assert all(8 <= size <= 61 for row in SIZES for size in row)
    assert all(len(set(run)) == len(run) for run in zip(*SIZES, strict=True))


def test_what_a_run_that_was_not_used_contradicts_has_no_symbol():
    runs, fresh = [{"T": 20}, {"T": 10}, {"T": 33}, {"T": 27}], {"T": 18}
    right = Solver(("T",), {}, runs, fresh)
    assert right.solve((21, 11, 34, 28, 19)) == "T + 1" and right.solve((5, 5, 5, 5, 5)) == "5"
    assert right.solve((21, 11, 34, 28, 20)) == "?" and right.solve((5, 5, 5, 5, 6)) == "?"
    assert right.solve((20, 10, 33, 27, 17)) == "?"


def test_at_least_four_runs_are_made_and_the_last_solves_nothing():
    net = nn.Linear(5, 3)
    with pytest.raises(ValueError, match="2 runs at other sizes are too few"):
        solve(
            Recording(),
            {"B": 1},
            Vocabulary(("B",), {}, lambda at: (net, (torch.randn(at["B"], 5),))),
            [{"B": 2}, {"B": 3}],
        )
    for name in models.names():
        probes = models.spec_of(name).probes
        assert len(probes) >= 3 and all(probes[-1][size] not in {p[size] for p in probes[:-1]} for size in probes[-1])


def test_patches_that_have_to_fit_are_probed_at_multiples():
    class Patches(nn.Module):
        def forward(self, x):
            if x.shape[1] % 8:
                raise ValueError("8 by 8")
            return x.unflatten(1, (-1, 8)).sum(2)

    trace = tracer.trace(Patches(), torch.randn(2, 64), symbols={"B": 0, "H": 1})
    assert value_of(trace.ops[-1].outputs[0].symbolic[1], {"H": 48}) == 6


def test_a_table_that_ends_is_probed_below_its_end():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(12, 5)

        def forward(self, x):
            return x + self.table(torch.arange(x.shape[1]))

    trace = tracer.trace(Positions(), torch.randn(2, 12, 5), symbols={"B": 0, "T": 1})
    assert trace.ops[-1].outputs[0].symbolic == ("B", "T", "5")


def test_large_modules_are_probed_without_values(monkeypatch):
    from tracer.shapes import probes

    calls = SimpleQueue()  # a list would be put back

    class Looks(nn.Linear):
        def forward(self, x):
            calls.put(type(x).__name__)
            return super().forward(x)

    monkeypatch.setattr(probes, "HEAVY_FLOPS", 0)
    trace = tracer.trace(Looks(5, 3), torch.randn(2, 5), symbols={"B": 0})
    ran = [calls.get() for _ in range(calls.qsize())]
    assert trace.ops[-1].outputs[0].symbolic == ("B", "3") and ran == ["Tensor"] + ["FakeTensor"] * 8

    class Asks(Looks):
        def forward(self, x):
            return super().forward(x) if x.sum() > -1e9 else x

    assert tracer.trace(Asks(5, 3), torch.randn(2, 5), symbols={"B": 0}).ops[-1].outputs[0].symbolic == ("B", "3")


def test_copies_that_only_values_need_are_solved_without_them(monkeypatch):
    from tracer.shapes import probes

    monkeypatch.setattr(probes, "HEAVY_FLOPS", 0)
    layer = nn.TransformerEncoderLayer(12, 2, 20, batch_first=True).eval()
    with torch.no_grad():
        trace = tracer.trace(layer, torch.randn(1, 7, 12), symbols={"B": 0, "T": 1})
    assert all("?" not in tensor.symbolic for op in trace.ops for tensor in (*op.inputs, *op.outputs))


class Closing(nn.Module):
    """A block that keeps its MLP as a function over modules, as minGPT does."""

    def __init__(self, close):
        super().__init__()
        self.mlp = nn.ModuleDict({"up": nn.Linear(4, 6), "act": nn.ReLU(), "down": nn.Linear(6, 4)})
        close(self, self.mlp)

    def forward(self, x):
        return x + self.run(x)


def run_mlp(mlp, x):
    return mlp.down(mlp.act(mlp.up(x)))


def close_over(net, mlp):
    net.run = lambda x: mlp.down(mlp.act(mlp.up(x)))


def bind_by_default(net, mlp):
    net.run = lambda x, mlp=mlp: run_mlp(mlp, x)


def bind_partially(net, mlp):
    net.run = functools.partial(run_mlp, mlp)


def close_in_closures(net, mlp):
    inner = [lambda x: mlp.act(mlp.up(x))]
    net.run = lambda x: mlp.down(inner[0](x))


def close_in_hook(net, mlp):
    mlp.up.register_forward_hook(lambda module, inputs, output: mlp.down(mlp.act(output)))
    net.run = mlp.up


@pytest.mark.parametrize("close", [close_over, bind_by_default, bind_partially, close_in_closures, close_in_hook])
def test_functions_that_a_module_keeps_call_the_modules_of_its_copy(close):
    net = Closing(close).eval()
    run = tracer.trace(net, torch.randn(2, 5, 4), symbols={"B": 0, "T": 1})
    assert run.notes == () and not any("?" in step.symbolic or step.note for step in run.steps)
    assert {step.symbolic[:2] for step in run.steps} == {("B", "T")}
