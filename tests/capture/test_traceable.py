"""Traceable objects, and inputs of a forward: functions, dataclasses, casts; all else is refused in words."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import flex_attention as flex

import tracer
from tests.capture.test_unchanged import Remembers, snapshot


@dataclass(frozen=True)
class Batch:
    x: torch.Tensor
    times: int = 3


def test_dataclasses_go_in_and_come_out():
    class Doubles(nn.Module):
        def forward(self, batch):
            return Batch(batch.x * batch.times, batch.times)

    batch = Batch(torch.randn(2, 5))
    trace = tracer.trace(Doubles(), batch, symbols={"B": ("batch.x", 0)})
    assert trace.ops[0].inputs[0].maker == "input batch.x" and trace.ops[0].outputs[0].symbolic == ("B", "5")
    assert torch.equal(trace.output.x, batch.x * 3) and trace.output.times == 3


@pytest.mark.parametrize(
    ("symbols", "said"),
    [
        ({"B": 0, "N": 0}, "'B' and 'N' both name axis 0 of 'x'"),
        ({"T": 1, "S": ("x", -1)}, "'T' and 'S' both name axis 1 of 'x'"),
        ([("B", 0)], "expected something like {'B': 0"),
        ({"B B": 0}, "'B B' is not a name for a size"),
        ({"B": "x"}, "expected an axis, (input, axis), or a list of these"),
        ({"T": 1}, "'T' is 5 in axis 1 of 'x' and 4 in axis 1 of 'y'"),
    ],
)
def test_symbols_that_name_no_one_size_are_refused_in_words(symbols, said):
    class Both(nn.Module):
        def forward(self, x, y=None):
            return x + 1

    y = (torch.randn(3, 4),) if symbols == {"T": 1} else ()
    with pytest.raises(ValueError) as caught:
        tracer.trace(Both(), torch.randn(2, 5), *y, symbols=symbols)
    assert said in str(caught.value)


def test_a_function_is_traced_with_the_modules_that_it_reads():
    linear, weight = nn.Linear(5, 3), nn.Parameter(torch.randn(3, 4))

    def head(x):
        return linear(x) @ weight

    trace = tracer.trace(head, torch.randn(2, 5), symbols={"B": 0})
    assert trace.model == "head" and trace.params == 18 + 12 and trace.ops[-1].outputs[0].symbolic == ("B", "4")
    assert {name for op in trace.ops for name in op.parameters} == {"linear.weight", "linear.bias", "weight"}
    net = Remembers()
    before = snapshot(net)
    assert tracer.trace(net.linear.forward, torch.randn(2, 5)).ops[-1].parameters == ("bias",)
    assert tracer.trace(net.forward, torch.randn(2, 80, 5), symbols={"B": 0}).ops[-1].outputs[0].symbolic[0] == "B"
    assert snapshot(net) == before
    with pytest.raises(ValueError, match="3 can't be run, expected a module or a function"):
        tracer.trace(3)


def test_autocast_shows_every_cast():
    net, x = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 3)), torch.randn(2, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = net(x)
        trace = tracer.trace(net, x, symbols={"B": 0})
    assert torch.equal(trace.output, expected) and trace.output.dtype == torch.bfloat16
    assert {name for op in trace.ops for name in op.parameters} == {n for n, _ in net.named_parameters()}
    assert all("?" not in t.symbolic for op in trace.ops for t in op.outputs)


LAID_OUT = {
    "transposed": torch.randn(5, 2).t(),
    "sliced": torch.randn(2, 8)[:, :5],
    "every other": torch.randn(2, 10)[:, ::2],
    "expanded": torch.randn(1, 5).expand(2, 5),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_inputs_that_are_not_contiguous_are_probed_as_they_lie(name):
    class Flattens(nn.Module):
        def forward(self, x):
            return x.reshape(-1) * 2

    trace = tracer.trace(Flattens(), LAID_OUT[name], symbols={"B": 0, "T": 1})
    assert [op.op for op in trace.ops] == (
        ["view", "mul"] if name == "every other" else ["clone", "_unsafe_view", "mul"]
    )
    assert all("?" not in tensor.symbolic for op in trace.ops for tensor in (*op.inputs, *op.outputs))
    assert trace.ops[-1].outputs[0].symbolic == ("B*T",)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors_are_refused_in_words(layout):
    nested = torch.nested.nested_tensor([torch.randn(2, 5), torch.randn(3, 5)], layout=layout)
    with pytest.raises(ValueError, match=r"a nested tensor can't be traced.*pad them"):
        tracer.trace(nn.Linear(5, 3), nested)


def test_parameters_without_a_shape_are_refused_in_words():
    with pytest.raises(ValueError, match=r"'0.weight' has no shape before the first forward"):
        tracer.trace(nn.Sequential(nn.LazyLinear(3)), torch.randn(2, 5))


def test_fake_tensors_are_refused_in_words():
    with FakeTensorMode():
        net, x = nn.Linear(4, 3), torch.randn(2, 4)
        with pytest.raises(ValueError, match=r"'weight' is a fake tensor.*on the device 'meta'"):
            tracer.trace(net, x)
    with pytest.raises(ValueError, match="'x' is a fake tensor"):
        tracer.trace(lambda x: x + 1, x)


def compiled_in_place():
    net = nn.Sequential(nn.Linear(4, 3))
    net[0].compile()
    return net


COMPILED_MODULES = {
    "the module": lambda: torch.compile(nn.Linear(4, 3)),
    "'1'": lambda: nn.Sequential(nn.ReLU(), torch.compile(nn.Linear(4, 3))),
    "'0'": compiled_in_place,
    "the function": lambda: torch.compile(lambda x: x + 1),
}


@pytest.mark.parametrize("name", COMPILED_MODULES)
def test_what_is_compiled_is_refused_in_words(name):
    with pytest.raises(ValueError, match=f"^{name} was compiled by torch.compile"):
        tracer.trace(COMPILED_MODULES[name](), torch.randn(2, 4))


def test_flex_attention_is_traced_completely():
    class Causal(nn.Module):
        def forward(self, q):
            def mask(score, batch, head, i, j):
                return torch.where(i >= j, score, -float("inf"))

            return flex.flex_attention(q, q, q, score_mod=mask)

    q = torch.randn(2, 3, 7, 4)
    before = flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    trace = tracer.trace(Causal(), q, symbols={"B": 0, "T": 2})
    assert before == flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
    expected = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert torch.allclose(trace.output, expected, atol=1e-6)
    names = [op.op for op in trace.ops]
    assert names.count("matmul") == 2 and "_safe_softmax" in names and "where" in names


class CallsCompiled(nn.Module):
    """A module whose forward calls a compiled function, or a compiled method of its own."""

    def __init__(self, method):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.run = torch.compile(self.gate if method else torch.nn.functional.silu, backend="eager")

    def gate(self, x):
        return torch.sigmoid(self.linear(x)) * x

    def forward(self, x):
        return self.run(self.linear(x))


@pytest.mark.parametrize("method", [True, False])
def test_a_compiled_function_inside_runs_as_it_is_written(method):
    net, x = CallsCompiled(method).eval(), torch.randn(2, 4)
    run = tracer.trace(net, x, symbols={"B": 0})
    assert run.notes == () and {step.symbolic[0] for step in run.steps} == {"B"}
    assert {step.verdict for step in run.steps} == {"verified"}
    assert torch.equal(run.output, (net.gate if method else torch.nn.functional.silu)(net.linear(x)))
