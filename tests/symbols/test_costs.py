"""Cost of an operation: counted, or reported as not counted, and never 0 for want of a formula."""

import json

import pytest
import torch
from streamlit.testing.v1 import AppTest
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import tracer
from tracer import export
from tracer.figures import op_tables
from tracer.figures.op_tables import arithmetic
from tracer.ops import COMPUTING
from tracer.shapes import value_of
from tracer.symbols import cost


class Recurrent(nn.Module):
    """A linear layer, whose products are counted, and an LSTM, whose are not."""

    def __init__(self):
        super().__init__()
        self.before, self.lstm = nn.Linear(5, 6), nn.LSTM(6, 7, batch_first=True)

    def forward(self, x):
        return self.lstm(self.before(x))[0]


class Unknown(nn.Module):
    """A module whose product's width is not an expression over the sizes of its input."""

    def forward(self, x):
        return x[:, : x.shape[1] ** 2 % 7 + 1] @ torch.ones(3, 4)


@pytest.fixture(scope="module")
def recurrent():
    with torch.no_grad():
        return tracer.trace(Recurrent(), torch.randn(2, 3, 5), symbols={"B": 0, "T": 1})


def test_an_op_without_a_formula_is_not_counted(recurrent):
    (op,) = recurrent.uncounted_ops
    assert op.flops is None and op.flops_symbolic == "?" and "rnn" in op.op
    assert recurrent.flops == 2 * 2 * 3 * 5 * 6 and recurrent.flops_symbolic == "60*B*T"


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_product_is_not_counted():
    net = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(5, 7), nn.ReLU()), {nn.Linear})
    linear, relu = tracer.trace(net, torch.randn(2, 5)).ops
    assert linear.op == "quantized.linear_dynamic" and linear.flops is None and relu.flops == 0


@pytest.mark.parametrize("format", ["table", "markdown", "html", "latex", "csv"])
def test_every_view_says_what_is_not_counted(recurrent, format):
    shown = export.render(recurrent, "ops", format)
    assert "not counted" in shown and "None" not in shown


def test_operations_that_compute_are_those_of_the_coloured_bars():
    trace = tracer.load("vit").trace(prove=False)

    def page(trace):
        from pages.sections import operations

        operations.totals(trace)

    at = AppTest.from_function(page, args=(trace,)).run()
    (metric,) = (metric.value for metric in at.metric if metric.label == "that compute")
    counts = op_tables.counts([op.op for op in trace.ops])
    assert int(metric) == sum(count for name, count in counts.items() if name in COMPUTING)


def test_totals_say_what_they_lack(recurrent):
    (op,) = recurrent.uncounted_ops
    assert f"not counted: 1 × {op.op}" in export.render(recurrent, "ops", "table").splitlines()[2]
    assert json.loads(export.render(recurrent, "ops", "json"))["ops"][op.index]["flops"] is None
    rows = op_tables.table(recurrent, "ops")["rows"]
    assert rows[op.index]["cells"][5] == [0, "not counted"]
    assert sum(sum(row.values()) for row in arithmetic(recurrent).values()) == recurrent.flops


def test_a_saved_run_still_says_it(recurrent, tmp_path):
    recurrent.save(tmp_path / "run.safetensors")
    assert tracer.open(tmp_path / "run.safetensors").ops == recurrent.ops


def test_the_pages_say_it(recurrent):
    def page(trace):
        from pages.sections import operations

        operations.totals(trace)
        operations._cost(trace.uncounted_ops[0])

    at = AppTest.from_function(page, kwargs={"trace": recurrent}).run()
    said = " ".join(element.value for element in (*at.caption, *at.markdown))
    assert not at.exception and "Not counted: 1 ×" in said and "FLOP: **not counted**" in said


def test_flops_of_a_size_without_a_symbol_are_not_known_in_symbols():
    trace = tracer.trace(nn.Conv2d(3, 8, 3), torch.randn(2, 3, 20, 24), symbols={"B": 0, "H": 2, "W": 3})
    sizes = {"B": 2, "H": 20, "W": 24}
    assert value_of(trace.flops_symbolic, sizes) == trace.flops == 2 * 2 * 8 * 18 * 22 * 27
    trace = tracer.trace(Unknown(), torch.randn(2, 3, 3)[:, :, :3], symbols={"B": 0, "T": 1})
    assert trace.flops > 0 and trace.flops_symbolic == "?"
    assert "not known in symbols" in export.render(trace, "ops", "table")


def test_a_transposed_convolution_costs_what_pytorch_counts():
    net, x = nn.ConvTranspose2d(3, 8, 3, stride=2, padding=1), torch.randn(2, 3, 5, 7)
    with torch.no_grad():
        trace = tracer.trace(net, x, symbols={"B": 0, "H": 2, "W": 3})
        with FlopCounterMode(display=False) as counter:
            net(x)
    assert trace.flops == counter.get_total_flops()
    assert value_of(trace.flops_symbolic, {"B": 2, "H": 5, "W": 7}) == trace.flops
    assert trace.ops[-1].outputs[0].symbolic == ("B", "8", "2*H - 1", "2*W - 1")


@pytest.mark.parametrize("op", "relu_ silu_ rsqrt lgamma cummax _fused_rms_norm upsample_bilinear2d _to_copy".split())
def test_what_multiplies_no_matrices_costs_0(op):
    assert cost.flops(op, ((3, 4),), (3, 4)) == 0 and cost.flops_symbolic(op, (("B", "4"),), ("B", "4")) == "0"


@pytest.mark.parametrize("op", "mkldnn_rnn_layer quantized.linear mv dot linalg_solve mine.fused _int_mm".split())
def test_what_may_multiply_matrices_and_has_no_formula_is_not_counted(op):
    assert cost.flops(op, ((3, 4),), (3, 4)) is None and cost.flops_symbolic(op, (("B", "4"),), ("B", "4")) == "?"


def test_products_in_place_cost_what_products_cost():
    assert cost.flops("addmm_", ((2, 3), (2, 4), (4, 3)), (2, 3)) == 2 * 2 * 3 * 4


class Folded(nn.Module):
    """A linear map of a tensor that is contiguous in a batch of one alone: PyTorch multiplies it differently then."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 5)

    def forward(self, x):
        return self.linear(x.transpose(0, 1))


def test_a_formula_that_holds_at_one_batch_size_says_so():
    said = "the FLOP formula holds at B = 1 only: one of the operations runs at this batch size alone"
    symbols = {"B": 0, "T": 1}
    one, two = (tracer.trace(Folded(), torch.randn(size, 7, 8), symbols=symbols) for size in (1, 2))
    assert said in one.notes and "B" not in one.flops_symbolic
    assert not two.notes and value_of(two.flops_symbolic, {"B": 2, "T": 7}) == two.flops
