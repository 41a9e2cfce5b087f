"""Formulas have their names however they are spelled: usual spellings of well-known ones, and what is nearly one."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer

D = 8


class Of(nn.Module):
    """A function of x `[B, T, 8]` and of two vectors."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.g, self.b = nn.Parameter(torch.rand(D) + 0.5), nn.Parameter(torch.rand(D))

    def forward(self, x):
        return self.function(self, x)


def squares(x):
    return x.pow(2).mean(-1, keepdim=True)


def centred(x):
    return x - x.mean(-1, keepdim=True)


def quotient(powers):
    return powers / powers.sum(-1, keepdim=True)


RMS = {
    "Llama": lambda m, x: m.g * (x * torch.rsqrt(squares(x) + 1e-6)),
    "a quotient": lambda m, x: x / torch.sqrt(squares(x) + 1e-6) * m.g,
    "x times x": lambda m, x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * m.g,
    "epsilon in front": lambda m, x: x * torch.rsqrt(1e-6 + squares(x)) * m.g,
    "square": lambda m, x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * m.g,
    "Gemma": lambda m, x: x * torch.rsqrt(squares(x) + 1e-6) * (1 + m.g),
    "F.rms_norm": lambda m, x: F.rms_norm(x, (D,), m.g, 1e-6),
    "by its length": lambda m, x: x / (x.norm(2, dim=-1, keepdim=True) / math.sqrt(x.size(-1))) * m.g,
}
LAYER = {
    "F.layer_norm": lambda m, x: F.layer_norm(x, (D,), m.g, m.b),
    "variance": lambda m, x: centred(x) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * m.g + m.b,
    "mean of squares": lambda m, x: m.g * (centred(x) * torch.rsqrt(squares(centred(x)) + 1e-5)) + m.b,
    "The Annotated Transformer": lambda m, x: m.g * centred(x) / (x.std(-1, keepdim=True) + 1e-6) + m.b,
}
ROOT = math.sqrt(2 / math.pi)
GELU_TANH = {
    "F.gelu": lambda m, x: F.gelu(x, approximate="tanh"),
    "NewGELU": lambda m, x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    "x first": lambda m, x: x * 0.5 * (1 + torch.tanh(ROOT * (x + 0.044715 * x**3))),
    "FastGELU": lambda m, x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    "x times x times x": lambda m, x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x * x * x))),
}
GELU = {
    "F.gelu": lambda m, x: F.gelu(x),
    "BERT": lambda m, x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
}
SILU = {
    "F.silu": lambda m, x: F.silu(x),
    "x sigmoid(x)": lambda m, x: x * torch.sigmoid(x),
    "a quotient": lambda m, x: x / (1 + torch.exp(-x)),
}
SOFTMAX = {
    "softmax": lambda m, x: x.softmax(-1),
    "exp over sum": lambda m, x: x.exp() / x.exp().sum(-1, keepdim=True),
    "less the maximum": lambda m, x: quotient((x - x.max(-1, keepdim=True).values).exp()),
}


def rotary(turn, sign=1.0):
    """A function that turns heads of width 4 by the angles of their places."""

    def function(m, x):
        q = x.view(*x.shape[:2], 2, 4).transpose(1, 2)
        rates = 10000 ** (-torch.arange(0, 4, 2).float() / 4)
        return turn(q, sign * torch.arange(x.shape[1]).float()[:, None] * rates)

    return function


def by_slices(q, a):
    c = torch.cat([a, a], -1)
    return q * c.cos() + torch.cat([-q[..., 2:], q[..., :2]], -1) * c.sin()


def by_chunk(q, a):
    c, (first, second) = torch.cat([a, a], -1), q.chunk(2, -1)
    return q * c.cos() + torch.cat([-second, first], -1) * c.sin()


def every_two(q, a):
    c = a.repeat_interleave(2, -1)
    return q * c.cos() + torch.stack([-q[..., 1::2], q[..., ::2]], -1).flatten(-2) * c.sin()


def complex_numbers(q, a):
    pairs = torch.view_as_complex(q.reshape(*q.shape[:-1], 2, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(a), a)).flatten(3)


def two_halves(q, a):
    first, second, c, s = q[..., :2], q[..., 2:], a.cos(), a.sin()
    return torch.cat([first * c - second * s, first * s + second * c], -1)


HALF = {"slices": rotary(by_slices), "chunk": rotary(by_chunk), "two halves": rotary(two_halves)}
EVERY_TWO = {"GPT-J": rotary(every_two), "Llama": rotary(complex_numbers)}


def stacked(m, x, base=10000):
    places, k = torch.arange(x.shape[1]).float()[:, None], torch.arange(0, D, 2).float()
    angles = places / base ** (k / D)
    return x + torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def assigned(m, x):
    places, k = torch.arange(x.shape[1]).float()[:, None], torch.arange(0, D, 2).float()
    rates, table = torch.exp(k * (-math.log(10000.0) / D)), torch.zeros(x.shape[1], D)
    table[:, 0::2] = torch.sin(places * rates)
    table[:, 1::2] = torch.cos(places * rates)
    return x + table


def joined(m, x, less=0):
    rates = torch.exp(torch.arange(0, D, 2).float() * (-math.log(10000.0) / (D - less)))
    angles = torch.arange(x.shape[1]).float()[:, None] * rates
    return x + torch.cat([angles.sin(), angles.cos()], -1)


WAVES = {"stack": stacked, "slices": assigned}
HALVES = {"halves": joined}
LENGTH = r"\sqrt{\operatorname{mean}({\mathbf{x}}^2)"
SPELLINGS = [
    (LENGTH + " + 10^{-6}}", [*RMS.values()][:-1]),
    (LENGTH + "}", [*RMS.values()][-1:]),
    (r"\sqrt{\sigma^2(\mathbf{x}) + 10^{-5}}} \odot", [*LAYER.values()][:-1]),
    (r"\sqrt{\frac{8}{7}\,\sigma^2(\mathbf{x})} + 10^{-6}} \odot", [*LAYER.values()][-1:]),
    (r"\operatorname{GELU}_{\tanh}\left(\mathbf{x}\right)", GELU_TANH.values()),
    (r"= \operatorname{GELU}\left(\mathbf{x}\right)", GELU.values()),
    (r"= \operatorname{SiLU}\left(\mathbf{x}\right)", SILU.values()),
    (r"= \operatorname{softmax}\left(\mathbf{x}\right)", SOFTMAX.values()),
    (r"\operatorname{rotate\_half}\left(\mathbf{Y}\right) \odot", HALF.values()),
    (r"\operatorname{rotate\_every\_two}\left(\mathbf{Y}\right) \odot", EVERY_TWO.values()),
    (r"\sin\left(i \,/\, 10000^{2k/8}\right) & j = 2k \\", WAVES.values()),
    (r"\sin\left(i \,/\, 10000^{2j/8}\right) & j < 4 \\", HALVES.values()),
]
CASES = [(said, function) for said, functions in SPELLINGS for function in functions]
MORE = {
    "softplus": (lambda m, x: torch.log(1 + torch.exp(x)), r"\operatorname{softplus}\left("),
    "softplus of a maximum": (
        lambda m, x: x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())),
        r"\operatorname{softplus}",
    ),
    "sigmoid": (lambda m, x: 1 / (1 + torch.exp(-x)), r"= \sigma\left("),
    "sigmoid by tanh": (lambda m, x: 0.5 * (torch.tanh(x / 2) + 1), r"= \sigma\left("),
    "mish": (lambda m, x: x * torch.tanh(F.softplus(x)), r"\operatorname{Mish}"),
    "a log-softmax": (lambda m, x: x - x.exp().sum(-1, keepdim=True).log(), r"\log\operatorname{softmax}"),
    "a softmax of logarithms": (lambda m, x: (x - x.logsumexp(-1, keepdim=True)).exp(), r"\operatorname{softmax}"),
    "logsumexp": (lambda m, x: x.exp().sum(-1).log(), r"\operatorname{logsumexp}"),
    "GELU by the normal distribution": (lambda m, x: x * torch.special.ndtr(x), r"\operatorname{GELU}\left("),
    "another axis": (lambda m, x: x.exp() / x.exp().sum(1, keepdim=True), r"\operatorname{softmax}_{"),
    "tensor2tensor": (lambda m, x: joined(m, x, 2), r"10000^{2j/6}"),
    "another base": (lambda m, x: stacked(m, x, 500), r"500^{2k/8}"),
}
NEARLY = {
    "another slope": (lambda m, x: x * torch.sigmoid(1.702 * x), "SiLU"),
    "another cube": (lambda m, x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.0447 * x**3))), "GELU"),
    "half of one": (lambda m, x: x * 0.25 * (1.0 + torch.erf(x / math.sqrt(2.0))), "GELU"),
    "rounded": (lambda m, x: x * 0.5 * (1.0 + torch.erf(x / 1.414)), "GELU"),
    "another axis": (lambda m, x: x.exp() / x.exp().sum(1, keepdim=True).mean(-1, keepdim=True), "softmax"),
    "twice the sum": (lambda m, x: x.exp() / (2 * x.exp().sum(-1, keepdim=True)), "softmax"),
    "no square": (lambda m, x: x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + 1e-6), r"{\mathbf{x}}^2"),
    "no centre": (lambda m, x: x / torch.sqrt(x.var(-1, keepdim=True) + 1e-5), r"\mu"),
    "with another sign": (
        rotary(lambda q, a: q * a.cos().repeat(1, 2) + q.roll(2, -1) * a.sin().repeat(1, 2)),
        "rotate",
    ),
    "of two angles": (
        rotary(lambda q, a: torch.cat([q[..., :2] * a.cos() - q[..., 2:] * a.sin(), q[..., 2:] * a], -1)),
        "rotate",
    ),
    "what rounding hides": (lambda m, x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()), "tanh"),
}


def traced(function):
    torch.manual_seed(0)
    with torch.no_grad():
        return tracer.trace(Of(function).eval(), torch.randn(2, 6, D), symbols={"B": 0, "T": 1})


def named(function, said: str) -> bool:
    """Whether a line of a run has that in it, and all lines are proven."""
    steps = traced(function).steps
    return any(said in step.latex for step in steps) and {step.verdict for step in steps} == {"proven"}


def test_usual_spellings_read_as_the_textbook_has_them():
    missing = [said for said, function in CASES if not named(function, said)]
    assert (len(CASES), missing) == (33, [])


@pytest.mark.parametrize("case", MORE)
def test_further_spellings_do(case):
    function, said = MORE[case]
    assert named(function, said), [step.latex for step in traced(function).steps]


@pytest.mark.parametrize("case", NEARLY)
def test_what_is_nearly_one_has_no_name(case):
    function, unsaid = NEARLY[case]
    steps = traced(function).steps
    assert steps and not any(unsaid in step.latex for step in steps), [step.latex for step in steps]
    assert {step.verdict for step in steps} == {"proven"}
