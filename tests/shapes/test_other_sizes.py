"""Solved shapes of nets of libraries, compared with another run of the net at sizes that no probe had."""

import pytest
import torch
from torch import nn

import tracer
from tests.support.sweeping import cases
from tracer.capture import record
from tracer.shapes import value_of
from tracer.shapes.alignment import JOINS, align
from tracer.verify import small
from tracer.zoo.hf.hub import import_transformers
from tracer.zoo.torchvision_models import import_torchvision as vision


def resnet():
    return vision().models.resnet18(weights=None)


def pyramid():
    vision()
    import timm

    return timm.create_model("pvt_v2_b0", pretrained=False, depths=(1, 1, 1, 1))


def scan():
    config = import_transformers().MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, state_size=4)
    return import_transformers().MambaModel(config)


def upsampling_net():
    return nn.Sequential(nn.Conv2d(3, 8, 5, 2, 1), nn.MaxPool2d(3, 2, ceil_mode=True), nn.ConvTranspose2d(8, 4, 4, 3))


IMAGES, TEXT = {"B": 0, "H": 2, "W": 3}, {"B": 0, "T": 1}
NETS = {
    "resnet18": (resnet, (2, 3, 64, 64), (5, 3, 46, 71), IMAGES, 0),
    "pvt": (pyramid, (2, 3, 64, 64), (3, 3, 75, 58), IMAGES, None),
    "upsampled": (upsampling_net, (2, 3, 64, 64), (5, 3, 46, 71), IMAGES, 0),
    "mamba": (scan, (2, 24), (3, 29), TEXT, None),
}


@pytest.mark.parametrize("name", cases(NETS, NETS.keys() - {"pvt"}))
def test_no_size_that_is_solved_is_wrong_elsewhere(name):
    make, shape, other, symbols, unsolved = NETS[name]
    torch.manual_seed(0)
    net = make().eval()
    draw = torch.randn if len(shape) == 4 else lambda *size: torch.randint(50, size)
    with torch.no_grad():
        trace = tracer.trace(net, draw(*shape), symbols=symbols, prove=False)
        elsewhere = record(net, (draw(*other),), attention=False)
        places = align(record(net, (draw(*shape),), attention=False).ops, elsewhere.ops)
    sizes = {symbol: other[axis] for symbol, axis in symbols.items()}
    compared = 0
    for op, place in zip(trace.ops, places, strict=True):
        if place is None or op.note:
            continue
        ran = elsewhere.ops[place]
        if op.op not in JOINS:  # which join as many tensors as a loop has turns
            assert len(op.inputs) == len(ran.inputs)
        pairs = (*zip(op.inputs, ran.inputs, strict=False), *zip(op.outputs, ran.outputs, strict=True))
        for tensor, (numbers, *_) in pairs:
            for size, number in zip(tensor.symbolic, numbers, strict=True):
                compared += size != "?"
                assert size == "?" or value_of(size, sizes) == number, (op.index, op.op, tensor.symbolic, numbers)
    open_ones = sum(size == "?" for op in trace.ops for tensor in op.outputs for size in tensor.symbolic)
    assert compared > 10 and (unsolved is None or open_ones == unsolved)


def test_a_kernel_that_does_not_cover_its_input_is_no_cut_into_patches():
    """At a side of 48 the kernels of 8 and of 4 leave a rest of 12 and of 6; at the probes, multiples of 32, none."""
    model = small("hf:segformer")
    with torch.no_grad():
        trace = model.trace(B=2, H=48, W=48)
    assert {step.verdict for step in trace.steps} == {"verified", "recomputed"}
    reduced = {step.symbolic[1] for step in trace.steps if step.id.endswith("sequence_reduction.conv2d")}
    assert reduced == {f"floor(H/32 + {n}/32)*floor(W/32 + {n}/32)" for n in (3, 7)}


def test_the_root_of_a_rounded_size_is_solved_and_takes_no_symbols_away():
    traced = tracer.trace(lambda x: x / (x.shape[1] // 2) ** 0.5, torch.randn(4, 9, 16), symbols={"B": 0, "T": 1})
    (step,) = traced.steps
    assert (step.symbolic, step.verdict) == (("B", "T", "16"), "verified")
    assert r"\sqrt{\left\lfloor" in step.latex and not traced.notes
    assert value_of("sqrt(floor(T/2))", {"T": 9}) == 2
