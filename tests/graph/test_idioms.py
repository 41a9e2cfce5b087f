"""Formulas get their names however they are spelled: usual spellings of well-known ones, and near misses."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer
from tracer.expr.function_call import decimal
from tracer.latex_reader.evaluator import evaluate
from tracer.latex_reader.parser import read

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


def subtract_mean(x):
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
    "variance": lambda m, x: subtract_mean(x) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5) * m.g + m.b,
    "mean of squares": lambda m, x: m.g * (subtract_mean(x) * torch.rsqrt(squares(subtract_mean(x)) + 1e-5)) + m.b,
    "The Annotated Transformer": lambda m, x: m.g * subtract_mean(x) / (x.std(-1, keepdim=True) + 1e-6) + m.b,
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
    """Return a function that rotates heads of width 4 by the angles of their positions."""

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


def of_pairs(q, a):
    first, second, c, s = q[..., ::2], q[..., 1::2], a.cos(), a.sin()
    return torch.stack([first * c - second * s, first * s + second * c], -1).flatten(-2)


def rotate_by_writes(q, a):
    made, c, s = torch.empty_like(q), a.cos(), a.sin()
    made[..., :2] = q[..., :2] * c - q[..., 2:] * s
    made[..., 2:] = q[..., :2] * s + q[..., 2:] * c
    return made


def powers(q, a):
    pairs = torch.view_as_complex(q.unflatten(-1, (2, 2)).contiguous())
    return torch.view_as_real(pairs * torch.exp(1j * a)).flatten(3)


def matrices(q, a):
    turns = torch.stack([torch.stack([a.cos(), -a.sin()], -1), torch.stack([a.sin(), a.cos()], -1)], -2)
    return (turns @ q.unflatten(-1, (2, 2))[..., None]).flatten(-3)


def rotate_by_roll(q, a):
    a = torch.cat([a, a], -1)
    return q * a.cos() + q.roll(2, -1) * torch.cat([-torch.ones(2), torch.ones(2)]) * a.sin()


def by_channel(x):
    x = x - x.mean(1, keepdim=True)
    return x / torch.sqrt(x.pow(2).mean(1, keepdim=True) + 1e-5)


def by_parity(m, x):
    k = torch.arange(D)
    angles = torch.arange(x.shape[1])[:, None] / 10000 ** (2 * (k // 2) / D)
    return x + torch.where(k % 2 == 0, angles.sin(), angles.cos())


def add_stacked_sinusoids(m, x, base=10000):
    places, k = torch.arange(x.shape[1]).float()[:, None], torch.arange(0, D, 2).float()
    angles = places / base ** (k / D)
    return x + torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def add_assigned_sinusoids(m, x):
    places, k = torch.arange(x.shape[1]).float()[:, None], torch.arange(0, D, 2).float()
    rates, table = torch.exp(k * (-math.log(10000.0) / D)), torch.zeros(x.shape[1], D)
    table[:, 0::2] = torch.sin(places * rates)
    table[:, 1::2] = torch.cos(places * rates)
    return x + table


def add_joined_sinusoids(m, x, less=0, first=0):
    rates = torch.exp(torch.arange(0, D, 2).float() * (-math.log(10000.0) / (D - less)))
    angles = torch.arange(first, x.shape[1] + first).float()[:, None] * rates
    return x + torch.cat([angles.sin(), angles.cos()], -1)


WAVES = {"stack": add_stacked_sinusoids, "slices": add_assigned_sinusoids}
HALVES = {"halves": add_joined_sinusoids}
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
FURTHER_SPELLINGS = {
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
    "GELU by constants of torch": (
        lambda m, x: 0.5 * x * (1 + torch.erf(x / torch.sqrt(torch.tensor(2.0)))),
        r"\operatorname{GELU}\left(",
    ),
    "leaky": (lambda m, x: torch.where(x > 0, x, 0.1 * x), r"\operatorname{LeakyReLU}_{0.1}"),
    "HardSwish": (lambda m, x: x * F.relu6(x + 3) / 6, r"\operatorname{HardSwish}"),
    "softplus by logaddexp": (lambda m, x: torch.logaddexp(x, torch.zeros_like(x)), r"\operatorname{softplus}"),
    "RMSNorm by einsum": (
        lambda m, x: x * torch.rsqrt(torch.einsum("btd,btd->bt", x, x)[..., None] / D + 1e-6) * m.g,
        r"\sqrt{\operatorname{mean}({\mathbf{x}}^2) + 10^{-6}}",
    ),
    "epsilon outside": (
        lambda m, x: x / (squares(x).sqrt() + 1e-5) * m.g,
        r"\sqrt{\operatorname{mean}\left({\mathbf{x}}^2\right)} + 10^{-5}} \odot",
    ),
    "at least epsilon": (
        lambda m, x: x / squares(x).sqrt().clamp(min=1e-5) * m.g,
        r"\max\left(\sqrt{\operatorname{mean}\left({\mathbf{x}}^2\right)},\,10^{-5}\right)",
    ),
    "of unit length": (lambda m, x: x * torch.rsqrt((x * x).sum(-1, keepdim=True)), r"\right\rVert_2"),
    "moments": (
        lambda m, x: subtract_mean(x) / torch.sqrt(squares(x) - x.mean(-1, keepdim=True) ** 2 + 1e-5) * m.g + m.b,
        r"\sqrt{\sigma^2(\mathbf{x}) + 10^{-5}}",
    ),
    "by channel": (lambda m, x: by_channel(x.mT) * m.g[:, None] + m.b[:, None], r"\text{by channel}"),
    "of pairs": (rotary(of_pairs), r"\operatorname{rotate\_every\_two}"),
    "written into halves": (rotary(rotate_by_writes), r"\operatorname{rotate\_half}"),
    "by powers of i": (rotary(powers), r"\operatorname{rotate\_every\_two}"),
    "by matrices": (rotary(matrices), r"\operatorname{rotate\_every\_two}"),
    "rolled": (rotary(rotate_by_roll), r"\operatorname{rotate\_half}"),
    "by parity": (by_parity, r"10000^{2k/8}"),
    "from one": (
        lambda m, x: add_joined_sinusoids(m, x, first=1),
        r"\sin\left(\left(i + 1\right) \,/\, 10000^{2j/8}\right)",
    ),
    "tensor2tensor": (lambda m, x: add_joined_sinusoids(m, x, 2), r"10000^{2j/6}"),
    "another base": (lambda m, x: add_stacked_sinusoids(m, x, 500), r"500^{2k/8}"),
    "eight digits": (lambda m, x: x * 0.5 * (1 + torch.tanh(0.79788456 * x * (1 + 0.044715 * x * x))), "GELU"),
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
    "clamped": (lambda m, x: x.clamp(-20, 20) * torch.sigmoid(x), "SiLU"),
    "another branch far out": (
        lambda m, x: torch.where(x > 9.5, torch.ones_like(x), torch.sigmoid(x)) * x,
        "SiLU",
    ),
    "a sum that is never 0": (lambda m, x: x.exp() / (x.exp().sum(-1, keepdim=True) + 1e-9), "softmax"),
    "what rounding hides": (lambda m, x: (x.exp() - (-x).exp()) / (x.exp() + (-x).exp()), "tanh"),
}


def trace_function(function, length=6):
    torch.manual_seed(0)
    with torch.no_grad():
        return tracer.trace(Of(function).eval(), torch.randn(2, length, D), symbols={"B": 0, "T": 1})


def has_verified_line(function, said: str) -> bool:
    """Return whether a line of a run contains a text, and all lines are verified, also on other runs in their printed
    form."""
    steps = trace_function(function).check().steps
    verified = all(step.verdict == "verified" and step.checked and not step.refuted for step in steps)
    return any(said in step.latex for step in steps) and verified


def test_usual_spellings_read_as_the_textbook_has_them():
    missing = [said for said, function in CASES if not has_verified_line(function, said)]
    assert (len(CASES), missing) == (33, [])


LARGE = [*RMS.values()][-1], [*LAYER.values()][-1], [*SOFTMAX.values()][-1], rotary(by_slices), rotary(matrices)


@pytest.mark.parametrize("function", LARGE)
def test_large_runs_read_the_same(function):
    small, large = ([step.latex for step in trace_function(function, length).steps] for length in (6, 5000))
    assert small == large


@pytest.mark.parametrize("case", FURTHER_SPELLINGS)
def test_further_spellings_do(case):
    function, said = FURTHER_SPELLINGS[case]
    assert has_verified_line(function, said), [step.latex for step in trace_function(function).steps]


@pytest.mark.parametrize("case", NEARLY)
def test_what_is_nearly_one_has_no_name(case):
    function, unsaid = NEARLY[case]
    steps = trace_function(function).steps
    assert steps and not any(unsaid in step.latex for step in steps), [step.latex for step in steps]
    assert {step.verdict for step in steps} == {"verified"}


NUMBERS = {
    math.sqrt(32): r"\sqrt{32}",
    1 / math.sqrt(8): r"\frac{1}{\sqrt{8}}",
    8**0.25: "8^{1/4}",
    8**-0.25: "8^{-1/4}",
    -math.log(10000.0): r"-\ln 10^{4}",
    -math.log(10000.0) / 16: r"-\frac{\ln 10^{4}}{16}",
    math.log(3): r"\ln 3",
    math.pi: r"\pi",
    math.pi / 2: r"\frac{\pi}{2}",
    ROOT: r"\sqrt{\frac{2}{\pi}}",
    math.sqrt(2 * math.pi): r"\sqrt{2\,\pi}",
    1.4142135: "1.4142135",
    1 / 3: "0.3333333333333333",
    0.7978845608: "0.7978845608",
}


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_read_as_an_author_writes_them(number):
    assert decimal(number) == NUMBERS[number]
    line = read(rf"\mathbf{{y}} = {NUMBERS[number]}", [r"\mathbf{y}"])
    assert float(evaluate(line, {}.get, ())) == pytest.approx(number, rel=1e-12)


class Attends(nn.Module):
    """Attention of two heads in no module of that name."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.a, self.b, self.c, self.d = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x):
        return self.d(self.function(*(one(x).view(*x.shape[:2], 2, 4) for one in (self.a, self.b, self.c))).flatten(2))


def by_einsum(q, k, v):
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / 2
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def by_bmm(q, k, v):
    q, k, v = (one.transpose(1, 2).flatten(0, 1) for one in (q, k, v))
    weights = (torch.bmm(q, k.transpose(1, 2)) / 2).exp()
    return torch.bmm(weights / weights.sum(-1, keepdim=True), v).unflatten(0, (-1, 2)).transpose(1, 2)


def by_baddbmm(q, k, v):
    q, k, v = (one.transpose(1, 2).flatten(0, 1) for one in (q, k, v))
    mask = torch.full((q.shape[1], q.shape[1]), float("-inf")).triu(1).expand(len(q), -1, -1)
    weights = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=0.5).softmax(-1)
    return torch.bmm(weights, v).unflatten(0, (-1, 2)).transpose(1, 2)


def linear(q, k, v):
    """Compute linear attention (Katharopoulos et al. 2020)."""
    q, k, v = (one.transpose(1, 2) for one in (F.elu(q) + 1, F.elu(k) + 1, v))
    return (q @ (k.transpose(-1, -2) @ v) / (q @ k.sum(-2).unsqueeze(-1) + 1e-6)).transpose(1, 2)


def linear_by_einsum(q, k, v):
    q, k = F.elu(q) + 1, F.elu(k) + 1
    shares = 1 / (torch.einsum("nlhd,nhd->nlh", q, k.sum(1)) + 1e-6)
    return torch.einsum("nlhd,nhmd,nlh->nlhm", q, torch.einsum("nshd,nshm->nhmd", k, v), shares)


ATTENDS = [by_einsum, by_bmm, by_baddbmm, linear, linear_by_einsum]


@pytest.mark.parametrize("function", ATTENDS, ids=lambda function: function.__name__)
def test_attention_is_found_however_it_is_spelled(function):
    steps = {
        step.id: step for step in tracer.trace(Attends(function), torch.randn(2, 5, D), symbols={"B": 0, "T": 1}).steps
    }
    inner = {"memory", "normaliser"} if function in (linear, linear_by_einsum) else {"scores", "weights"}
    assert {f"attention.{one}" for one in {"query", "key", "value", "context"} | inner} <= steps.keys()
    assert {step.verdict for step in steps.values()} == {"verified"}


class Recurrent(nn.Module):
    """An LSTM by hand; with `exponents`, the scalar one of Beck et al. 2024."""

    def __init__(self, exponents):
        super().__init__()
        self.exponents, self.x, self.h = exponents, nn.Linear(D, 4 * D), nn.Linear(D, 4 * D)

    def forward(self, x):
        h = c = n = m = x.new_zeros(len(x), D)
        made = []
        for t in range(x.shape[1]):
            i, f, z, o = (self.x(x[:, t]) + self.h(h)).chunk(4, -1)
            if self.exponents:
                m, before = torch.maximum(f + m, i), m
                i, f = torch.exp(i - m), torch.exp(f + before - m)
                c, n = f * c + i * z.tanh(), f * n + i
                h = o.sigmoid() * c / n
            else:
                c = f.sigmoid() * c + i.sigmoid() * z.tanh()
                h = o.sigmoid() * c.tanh()
            made.append(h)
        return torch.stack(made, 1)


@pytest.mark.parametrize(("exponents", "letters"), [(False, "ch"), (True, "mcnh")])
def test_states_of_an_lstm_have_letters_of_their_own(exponents, letters):
    steps = tracer.trace(Recurrent(exponents), torch.randn(2, 5, D), symbols={"B": 0, "T": 1}).steps
    gates, *states = [step.symbol for step in steps]
    assert gates == r"\mathbf{a}" and states == [rf"\mathbf{{{letter}}}" for letter in letters]
    assert {step.verdict for step in steps} == {"verified"}


def test_parameters_that_are_letters_are_printed_so():
    class Affine(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu, self.gamma_1 = nn.Parameter(torch.rand(D)), nn.Parameter(torch.rand(D))

        def forward(self, x):
            return (x - self.mu) * self.gamma_1

    (step,) = tracer.trace(Affine(), torch.randn(2, 5, D), symbols={"B": 0, "T": 1}).steps
    assert r"\boldsymbol{\mu}" in step.latex and r"\boldsymbol{\gamma}_{1}" in step.latex


def test_one_projection_that_is_used_three_times_is_not_packed():
    steps = tracer.trace(Attends(lambda q, k, v: by_bmm(q, q, q)), torch.randn(2, 5, D), symbols={"B": 0, "T": 1}).steps
    assert "Queries, keys and values" in [step.title for step in steps]
    assert not any("QKV" in step.latex for step in steps)
