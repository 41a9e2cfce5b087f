"""Zoom to primitives: every op opened into PyTorch's own decomposition, run on its own arguments, and compared."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer
from tests.support import hazards
from tracer.ops import is_layout
from tracer.utils.torch_internals import op_decomposition

TINY = {
    "vit": {"H": 12, "W": 20, "P": 4, "D": 12, "h": 3, "d_ff": 23, "K": 7, "L": 2},
    "nanogpt": {"V": 17, "T_max": 11, "D": 10, "h": 2, "d_ff": 23, "L": 2},
    "transformer": {"V": 17, "T_max": 11, "D": 12, "h": 3, "d_ff": 23, "R": 2, "L": 1},
}


class Calls(nn.Module):
    """One call of one function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def decompose_ops(function, *args, **options):
    """Decompositions of the computing ops that a function runs, by the name of the op."""
    with torch.no_grad():
        trace = tracer.trace(Calls(function), *args, primitives=True, **options)
    return {trace.ops[one.op].op: one for one in trace.decompositions if not is_layout(trace.ops[one.op].op)}


def names(decomposition, *, layout=False) -> list[str]:
    return [one.name for one in decomposition.primitives if layout or not is_layout(one.name)]


@pytest.mark.parametrize("name", TINY)
def test_every_decomposition_gives_what_the_op_gave(name):
    trace = tracer.load(name, **TINY[name]).trace(primitives=True)
    assert len(trace.decompositions) == len(trace.ops)
    for op, one in zip(trace.ops, trace.decompositions, strict=True):
        assert one.op == op.index and one.primitives
        if one.error is None:
            assert [p.name for p in one.primitives] == [op.op] and (one.note or is_layout(op.op))
        else:
            assert one.error <= 1e-5 and not one.note
        assert one.primitives[-1].outputs[0].shape == op.outputs[0].shape
    several = {op.op for op, one in zip(trace.ops, trace.decompositions, strict=True) if len(one.primitives) > 1}
    assert {"native_layer_norm", "_softmax"} <= several


@pytest.mark.parametrize("name", TINY)
def test_every_dimension_of_every_primitive_is_solved(name):
    trace = tracer.load(name, **TINY[name]).trace(primitives=True, B=3)
    sizes = {symbol.name: symbol.value for symbol in trace.symbols}
    for one in trace.decompositions:
        for tensor in [x for p in one.primitives for x in (*p.inputs, *p.outputs)]:
            assert "?" not in tensor.symbolic
            assert tuple(tracer.shapes.value_of(size, sizes) for size in tensor.symbolic) == tensor.shape


def test_without_being_asked_nothing_is_opened():
    assert tracer.load("vit", **TINY["vit"]).trace().decompositions == ()


def test_opening_changes_nothing():
    model = tracer.load("vit", **TINY["vit"])
    state = torch.get_rng_state()
    plain, zoomed = model.trace(), model.trace(primitives=True)
    assert torch.equal(plain.output, zoomed.output) and torch.equal(torch.get_rng_state(), state)
    assert plain.ops == zoomed.ops and plain.steps == zoomed.steps
    assert plain.values.keys() == zoomed.values.keys()


def test_layer_norm():
    one = decompose_ops(F.layer_norm, torch.randn(2, 5, 7), [7], torch.randn(7), torch.randn(7))["native_layer_norm"]
    assert names(one, layout=True) == ["var_mean", "add", "rsqrt", "sub", "mul", "mul", "add"]
    shapes = [p.outputs[0].shape for p in one.primitives]
    assert shapes == [(2, 5, 1)] * 3 + [(2, 5, 7)] * 4 and {p.within for p in one.primitives} == {""}
    makers = [[x.maker for x in p.inputs] for p in one.primitives]
    assert makers == [["input 0"], [0], [1], ["input 0", 0], [3, 2], [4, "input 1"], [5, "input 2"]]


def test_layer_norm_of_what_is_normalised_already():
    """Its means are next to nothing, and how far they are off says nothing."""
    x = F.layer_norm(torch.randn(5, 64), [64])
    assert decompose_ops(F.layer_norm, x, [64])["native_layer_norm"].error <= 1e-6


def test_every_output_of_an_op_of_several_is_compared():
    one = decompose_ops(lambda x: torch.aminmax(x, dim=-1), torch.randn(3, 5))["aminmax"]
    assert one.error == 0 and {part.outputs[0].shape for part in one.primitives} == {(3,)}


def test_gelu():
    assert names(decompose_ops(F.gelu, torch.randn(3, 5))["gelu"]) == ["mul", "mul", "erf", "add", "mul"]
    tanh = decompose_ops(lambda x: F.gelu(x, approximate="tanh"), torch.randn(3, 5))["gelu"]
    assert len(tanh.primitives) == 9 and names(tanh).count("tanh") == 1 and "erf" not in names(tanh)


def test_softmax():
    one = decompose_ops(lambda x: x.softmax(-1), torch.randn(3, 5))["_softmax"]
    assert names(one, layout=True) == ["amax", "sub", "exp", "sum", "div"]
    assert [p.outputs[0].shape for p in one.primitives] == [(3, 1), (3, 5), (3, 5), (3, 1), (3, 5)]


def test_softmax_of_a_row_that_is_all_masked():
    """Undefined in both, which is not a difference."""
    x = torch.zeros(2, 3)
    x[1] = -torch.inf
    one = decompose_ops(lambda x: x.softmax(-1), x)["_softmax"]
    assert one.error is not None and one.error <= 1e-7


@pytest.mark.parametrize("mask", ["none", "causal", "boolean", "additive", "prefix"])
def test_fused_attention_opens_into_its_products_and_softmax(mask):
    with torch.no_grad():
        trace = tracer.trace(hazards.FusedAttention(mask).eval(), torch.randn(2, 5, 12), primitives=True)
    one = next(one for op, one in zip(trace.ops, trace.decompositions, strict=True) if "scaled_dot" in op.op)
    assert one.error <= 1e-5
    products = [p for p in one.primitives if p.name == "bmm"]
    assert [p.outputs[0].shape for p in products] == [(6, 5, 5), (6, 5, 4)]
    softmax = [p.name for p in one.primitives if p.within.endswith("_safe_softmax/softmax/_softmax")]
    assert softmax == ["amax", "sub", "exp", "sum", "div"]
    assert [p.name for p in one.primitives if p.inputs and p.inputs[0].maker in ("input 0", "input 1")][:1] == ["mul"]


def test_packed_linear():
    one = decompose_ops(F.linear, torch.randn(3, 5), torch.randn(7, 5), torch.randn(7))["addmm"]
    assert names(one)[0] == "mm" and names(one)[-1] == "add" and one.error <= 1e-6


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x.clone().relu_(), "relu_"),
        (lambda x: F.silu(x.clone(), inplace=True), "silu_"),
        (lambda x: F.hardtanh(x.clone(), -0.5, 0.5, inplace=True), "hardtanh_"),
        (lambda x: x.clone().addcmul_(x, x), "addcmul_"),
        (lambda x: (y := x.clone()).addcdiv_(y, y.exp()), "addcdiv_"),
    ],
)
def test_ops_that_write_are_opened_on_what_they_were_given(function, name):
    """Also where they read the tensor that they write."""
    x = torch.randn(3, 5)
    one = decompose_ops(function, x)[name]
    assert one.error is not None and one.error <= 1e-6 and len(one.primitives) > 1


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["InPlace", "SharedModule", "CalledTwice", "Recovers", "WritesBuffer", "Random"])
def test_hazards(name, training):
    module, x = getattr(hazards, name)().train(training), torch.randn(3, 5)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    torch.manual_seed(0)
    plain = tracer.trace(module, x)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    zoomed = tracer.trace(module, x, primitives=True)
    assert torch.equal(plain.output, zoomed.output) and torch.equal(torch.get_rng_state(), state)
    assert [op.op for op in plain.ops] == [op.op for op in zoomed.ops] and plain.ops[-1] == zoomed.ops[-1]
    assert [op.source for op in plain.ops] == [op.source for op in zoomed.ops]
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert len(zoomed.decompositions) == len(zoomed.ops)
    assert all(one.error is None or one.error <= 1e-5 for one in zoomed.decompositions)


@pytest.mark.parametrize(
    "function", [torch.rand_like, lambda x: F.dropout(x, 0.5), lambda x: torch.native_dropout(x, 0.5, True)[0]]
)
def test_random_results_are_not_run_again(function):
    drawn = [one for name, one in decompose_ops(function, torch.randn(3, 5)).items() if name not in ("mul", "div_")]
    assert len(drawn) == 1 and len(drawn[0].primitives) == 1 and drawn[0].error is None
    assert "random" in drawn[0].note


def test_what_pytorch_has_no_decomposition_of_says_so():
    one = decompose_ops(lambda x: x @ x.mT, torch.randn(2, 3, 5))["bmm"]
    assert (names(one), one.error) == (["bmm"], None) and "any further" in one.note


def test_a_decomposition_that_fails_says_so(monkeypatch):
    from torch._decomp import decomposition_table

    def fails(*args, **kwargs):
        raise RuntimeError("not on this device\nand more")

    op_decomposition.cache_clear()
    monkeypatch.setitem(decomposition_table, torch.ops.aten.gelu.default, fails)
    try:
        one = decompose_ops(F.gelu, torch.randn(3))["gelu"]
    finally:
        op_decomposition.cache_clear()
    assert names(one) == ["gelu"] and one.error is None and one.note.endswith("(not on this device)")


def test_a_decomposition_that_is_wrong_shows_its_error(monkeypatch):
    from torch._decomp import decomposition_table

    op_decomposition.cache_clear()
    wrong = lambda x, approximate="none": x.exp() * 2  # noqa: E731
    monkeypatch.setitem(decomposition_table, torch.ops.aten.gelu.default, wrong)
    try:
        one = decompose_ops(F.gelu, torch.ones(3))["gelu"]
    finally:
        op_decomposition.cache_clear()
    assert names(one) == ["exp", "mul"] and one.error > 1


def test_a_decomposition_of_another_shape_is_refused(monkeypatch):
    from torch._decomp import decomposition_table

    op_decomposition.cache_clear()
    monkeypatch.setitem(decomposition_table, torch.ops.aten.gelu.default, lambda x, approximate="none": x.exp()[:1])
    try:
        one = decompose_ops(F.gelu, torch.ones(3))["gelu"]
    finally:
        op_decomposition.cache_clear()
    assert one.error is None and "[[1]]" in one.note and "[[3]]" in one.note


def test_half_precision_and_gradients():
    module = nn.Sequential(nn.LayerNorm(7), nn.GELU())
    trace = tracer.trace(module, torch.randn(2, 7, requires_grad=True), primitives=True)
    assert trace.output.shape == (2, 7) and max(one.error for one in trace.decompositions) <= 1e-6
    trace = tracer.trace(module.bfloat16(), torch.randn(2, 7).bfloat16(), primitives=True)
    assert max(one.error for one in trace.decompositions) <= 2**-7


def test_symbols_of_a_module_that_nobody_described():
    trace = tracer.trace(nn.LayerNorm(7), torch.randn(2, 5, 7), symbols={"B": 0, "T": 1}, primitives=True)
    (one,) = trace.decompositions
    assert next(p.outputs[0].symbolic for p in one.primitives) == ("B", "T", "1")
    assert one.primitives[-1].outputs[0].symbolic == ("B", "T", "7")


def test_a_forward_that_fails_leaves_the_primitives_so_far():
    with pytest.raises(KeyError) as caught:
        tracer.trace(hazards.HalfWay(), torch.randn(2, 5), primitives=True)
    trace = caught.value.trace
    assert [op.op for op in trace.ops] == ["add", "mul"] and len(trace.decompositions) == 2


def test_inference_mode():
    with torch.inference_mode():
        trace = tracer.trace(nn.TransformerEncoderLayer(8, 2, 16).eval(), torch.randn(5, 1, 8), primitives=True)
    assert max(one.error or 0 for one in trace.decompositions) <= 1e-5


def test_round_trip(tmp_path):
    trace = tracer.load("vit", **TINY["vit"]).trace(primitives=True)
    trace.save(tmp_path / "a.safetensors")
    assert tracer.open(tmp_path / "a.safetensors").decompositions == trace.decompositions


@pytest.mark.sweep
def test_many_threads_at_once():
    from concurrent.futures import ThreadPoolExecutor

    model = tracer.load("vit", **TINY["vit"])
    wanted = [[p.name for p in one.primitives] for one in model.trace(primitives=True).decompositions]
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda i: model.trace(primitives=i % 3 > 0), range(12)))
    for i, run in enumerate(runs):
        found = [[p.name for p in one.primitives] for one in run.decompositions]
        assert found == (wanted if i % 3 else [])
