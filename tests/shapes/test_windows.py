"""Sizes that follow from ops' own arguments (slices, sliding windows, padding), and rounded ones."""

import pytest
import torch
from latex2mathml.converter import convert
from torch import nn

import tracer
from tracer import export
from tracer.shapes import value_of
from tracer.shapes.solver import normalise_floors
from tracer.symbols.notation import latex, parse, text


class Slices(nn.Module):
    def forward(self, x):
        return x[:, 1:] + 0


class Cuts(nn.Module):
    """A module that slices every second, the first half, and repeats."""

    def forward(self, x):
        every, half = x[:, ::2], x[:, : x.shape[1] // 2]
        return torch.cat([every, half, x[:, -3:]], 1).flatten(0, 1).repeat(7, 1), x[:, 1:-2].repeat(7, 1, 1)


def test_a_slice_is_no_multiple_of_the_batch():
    trace = tracer.trace(Slices(), torch.randn(2, 5, 8), symbols={"B": 0, "T": 1})
    assert trace.ops[-1].outputs[0].symbolic == ("B", "T - 1", "8")


def test_halves_steps_offsets_and_multiples_are_solved():
    trace = tracer.trace(Cuts(), torch.randn(2, 13, 8), symbols={"B": 0, "T": 1})
    found = [tensor.symbolic for op in trace.ops for tensor in op.outputs]
    assert {("B", "ceiling(T/2)", "8"), ("B", "floor(T/2)", "8"), ("B", "T - 3", "8")} <= set(found)
    assert {("B", "T + 3", "8"), ("7*B*(T + 3)", "8"), ("7*B", "T - 3", "8")} <= set(found)


class Filled(nn.Module):
    """A module that pads a picture to the next multiple of 5 rows and of 7 columns, as models with windows do."""

    def forward(self, x):
        return nn.functional.pad(x, (0, -x.shape[3] % 7, 0, -x.shape[2] % 5))


WINDOWS = {
    "convolution": (nn.Conv2d(3, 4, 3, stride=2, padding=1, dilation=2), "floor(H/2 - 3/2) + 1"),
    "patches": (nn.Conv2d(3, 4, 5, stride=5), "floor(H/5)"),
    "half a stride short": (nn.Conv2d(3, 4, 4, stride=4, padding=1), "floor((H + 2)/4)"),
    "transposed": (nn.ConvTranspose2d(3, 4, 4, stride=3, padding=1, output_padding=1), "3*H"),
    "pooling": (nn.MaxPool2d(3, stride=2, padding=1), "ceiling(H/2)"),
    "pooling, rounded up": (nn.MaxPool2d(4, stride=4, ceil_mode=True), "ceiling(H/4)"),
    "average": (nn.AvgPool2d(3), "floor(H/3)"),
    "padding": (nn.ZeroPad2d((1, 2, 3, 4)), "H + 7"),
    "filled up": (Filled(), "5*ceiling(H/5)"),
    "one after another": (nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), nn.MaxPool2d(3, 2, 1)), "ceiling(H/4)"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_move_say_their_number_themselves(name):
    net, expected = WINDOWS[name]
    trace = tracer.trace(net, torch.randn(2, 3, 40, 52), symbols={"B": 0, "H": 2, "W": 3})
    for at in ({"B": 3, "H": 37, "W": 23}, {"B": 1, "H": 66, "W": 101}):
        shape = tuple(value_of(size, at) for size in trace.ops[-1].outputs[0].symbolic)
        assert shape == tuple(net(torch.randn(at["B"], 3, at["H"], at["W"])).shape)
        assert shape[2] == value_of(expected, at)


def test_what_is_divided_by_a_size_is_not_rounded_the_other_way():
    assert str(normalise_floors(parse("ceiling(T/P)"))) == "ceiling(T/P)" != str(normalise_floors(parse("floor(T/P)")))


ROUNDED_FORMULAS = [
    ("ceiling(T/2)", "⌈T/2⌉", r"\left\lceil \frac{T}{2} \right\rceil"),
    ("B*floor(H/2 - 1/2)", "B·⌊(H−1)/2⌋", r"B\,\left\lfloor \frac{H - 1}{2} \right\rfloor"),
    ("floor(H/4)**2", "⌊H/4⌋²", r"\left\lfloor \frac{H}{4} \right\rfloor^{2}"),
    ("B*(T - 1)", "B·(T−1)", r"B\,\left(T - 1\right)"),
    ("-T + T_max", "T_max−T", r"T_{\max} - T"),
]


@pytest.mark.parametrize(("formula", "plain", "typeset"), ROUNDED_FORMULAS)
def test_rounded_sizes_and_differences_are_written_well(formula, plain, typeset):
    assert str(parse(formula)) == formula
    assert text(formula) == plain and latex(formula) == typeset
    assert convert(typeset)


@pytest.mark.parametrize(
    "hostile", ["floor(sqrt(2))", "ceiling(T - sqrt(T))", "floor()", "floor T", "floor(" * 20 + "T"]
)
def test_what_is_rounded_is_bounded(hostile):
    with pytest.raises(ValueError, match="is not a formula over sizes"):
        parse(hostile)


def test_a_saved_run_keeps_rounded_sizes(tmp_path):
    trace = tracer.trace(nn.MaxPool2d(3, 2, 1), torch.randn(2, 3, 9, 14), symbols={"B": 0, "H": 2, "W": 3})
    trace.save(tmp_path / "run.safetensors")
    assert tracer.open(tmp_path / "run.safetensors").ops == trace.ops
    assert "⌈H/2⌉" in export.render(trace, "ops", "html") and r"\lceil" in export.render(trace, "ops", "latex")
