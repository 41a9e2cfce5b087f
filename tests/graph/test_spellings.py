"""Formulas get their textbook names however their authors spelled them: one small function for each spelling."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tracer

D, HEADS, INF = 8, 2, float("inf")


class Of(nn.Module):
    """A function of one or two inputs, and of some parameters."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(1)
        self.function = function
        self.g, self.b = nn.Parameter(torch.rand(D) + 0.5), nn.Parameter(torch.rand(D))
        self.table = nn.Parameter(torch.randn(11, D))
        self.q, self.k, self.v, self.o = (nn.Linear(D, D, bias=False) for _ in range(4))
        self.up, self.gate, self.down = nn.Linear(D, 12), nn.Linear(D, 12), nn.Linear(12, D)

    def forward(self, x, y=None):
        return self.function(self, x) if y is None else self.function(self, x, y)


def torch_inputs(kind: str) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    def count(limit, *shape):
        return torch.randint(limit, shape, generator=generator)

    inputs = {
        "tokens": lambda: (draw(2, 5, D),),
        "pair": lambda: (draw(2, 5, D), draw(2, 5, D)),
        "labels": lambda: (draw(2, 5, D), count(D, 2, 5)),
        "ids": lambda: (count(11, 2, 5),),
        "maps": lambda: (draw(2, D, 3, 5),),
        "photo": lambda: (draw(2, 3, 4, 8),),
    }
    return inputs[kind]()


def trace_function(function, kind="tokens"):
    inputs = torch_inputs(kind)
    symbols = {"B": 0} if inputs[0].dim() == 4 else {"B": 0, "T": 1}
    with torch.no_grad():
        return tracer.trace(Of(function).eval(), *inputs, symbols=symbols)


SPELLINGS: dict[str, tuple[Callable, str, str]] = {}
"""By its name, each function, what a title or a line of its textbook contains, and the kind of its inputs."""


def spell(formula: str, said: str, kind="tokens", **functions):
    SPELLINGS.update({f"{formula}: {name}": (function, said, kind) for name, function in functions.items()})


# Masks and scores.


def attend(mask):
    """Return attention of one head whose scores a function masks."""

    def function(m, x):
        scores = m.q(x) @ m.k(x).transpose(1, 2) / math.sqrt(D)
        return torch.softmax(mask(scores, x.shape[1]), -1) @ m.v(x)

    return function


def lower(T):
    return torch.tril(torch.ones(T, T))


spell(
    "causal mask",
    "Causal mask",
    arange=attend(lambda s, T: s.masked_fill(~(torch.arange(T)[:, None] >= torch.arange(T)), -INF)),
    arange_where=attend(lambda s, T: torch.where(torch.arange(T)[:, None] < torch.arange(T), -INF, s)),
    tril_is_0=attend(lambda s, T: s.masked_fill(lower(T) == 0, -INF)),
    triu=attend(lambda s, T: s.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -INF)),
    cumsum=attend(lambda s, T: s.masked_fill(torch.eye(T).cumsum(0) == 0, -INF)),
    log_of_tril=attend(lambda s, T: s + torch.log(lower(T))),
    low_number=attend(lambda s, T: s + (1 - lower(T)) * -1e9),
    where=attend(lambda s, T: torch.where(lower(T).bool(), s, torch.tensor(-INF))),
    multiplied=attend(lambda s, T: s * lower(T) - 1e9 * (1 - lower(T))),
    lowest=attend(lambda s, T: s.masked_fill(torch.ones(T, T).triu(1).bool(), torch.finfo(s.dtype).min)),
    torch_helper=attend(lambda s, T: s + nn.Transformer.generate_square_subsequent_mask(T)),
)


def score(function):
    """Return attention of one head with scores by a function."""
    return lambda m, x: torch.softmax(function(m.q(x), m.k(x)), -1) @ m.v(x)


spell(
    "scores",
    r"\mathbf{S} = \frac{\mathbf{Q}\,{\mathbf{K}}^{\top}}{\sqrt{8}}",
    fourth_roots=score(lambda q, k: (q / D**0.25) @ (k / D**0.25).mT),
    powers=score(lambda q, k: (q * D**-0.25) @ (k * D**-0.25).mT),
    queries_before=score(lambda q, k: (q * D**-0.5) @ k.mT),
    keys_before=score(lambda q, k: q @ (k / math.sqrt(D)).mT),
    rsqrt=score(lambda q, k: q @ k.mT * torch.rsqrt(torch.tensor(float(D)))),
    root_of_a_tensor=score(lambda q, k: q @ k.mT / torch.sqrt(torch.tensor(k.shape[-1], dtype=torch.float32))),
)


def split_heads(function):
    def attention(m, x):
        q, k, v = (part(x).view(*x.shape[:2], HEADS, D // HEADS) for part in (m.q, m.k, m.v))
        return m.o(function(q, k, v).reshape(x.shape))

    return attention


def by_bmm(q, k, v):
    q, k, v = (part.transpose(1, 2).flatten(0, 1) for part in (q, k, v))
    weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) / 2, -1)
    return torch.bmm(weights, v).unflatten(0, (-1, HEADS)).transpose(1, 2)


def by_einsum(scores, context):
    return lambda q, k, v: torch.einsum(context, torch.einsum(scores, q, k).mul(0.5).softmax(-1), v)


def by_mean_of_heads(q, k, v):
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / 2).softmax(-1).mean(1)
    return weights @ v.flatten(2)


spell(
    "attention",
    "Context",
    bmm=split_heads(by_bmm),
    einsum=split_heads(by_einsum("nqhd,nkhd->nhqk", "nhql,nlhd->nqhd")),
    einsum_of_other_letters=split_heads(by_einsum("zxyw,zvyw->zyxv", "zyxv,zvyw->zxyw")),
    mean_of_heads=split_heads(by_mean_of_heads),
)

# Activations and softmaxes.

spell(
    "ReLU",
    r"\operatorname{ReLU}",
    clamp=lambda m, x: x.clamp(min=0),
    maximum=lambda m, x: torch.maximum(x, torch.zeros_like(x)),
    where=lambda m, x: torch.where(x > 0, x, 0.0),
    by_sign=lambda m, x: x * (x > 0),
    absolute=lambda m, x: (x + x.abs()) / 2,
)
spell(
    "GELU",
    r"\operatorname{GELU}_{\tanh}",
    tanh=lambda m, x: 0.5 * x * (1 + (0.7978845608 * (x + 0.044715 * x**3)).tanh()),
)
spell("QuickGELU", r"\sigma\left(1.702", sigmoid=lambda m, x: x * torch.sigmoid(1.702 * x))
spell(
    "QuickGELU",
    "QuickGELU: ",
    sigmoid_first=lambda m, x: m.up(torch.sigmoid(1.702 * x) * x),
)
spell("SiLU", r"\operatorname{SiLU}", exp=lambda m, x: x * (1 / (1 + torch.exp(-x))))
spell("softplus", r"\operatorname{softplus}", log1p=lambda m, x: torch.log1p(torch.exp(x)))
spell("Mish", r"\operatorname{Mish}", log=lambda m, x: x * torch.tanh(torch.log(1 + torch.exp(x))))
spell("GLU", r"\operatorname{GLU}", chunk=lambda m, x: (lambda a, b: a * torch.sigmoid(b))(*x.chunk(2, -1)))
spell(
    "gated MLP",
    r"\operatorname{SiLU}",
    by_hand=lambda m, x: m.down(m.up(x) * (lambda g: g * torch.sigmoid(g))(m.gate(x))),
)
spell(
    "gated MLP",
    r"\operatorname{GELU}",
    erf=lambda m, x: m.down(m.up(x) * (lambda g: g * 0.5 * (1 + torch.erf(g / 2**0.5)))(m.gate(x))),
)
spell(
    "log-softmax",
    r"\log\operatorname{softmax}",
    difference=lambda m, x: x - torch.log(torch.exp(x).sum(-1, keepdim=True)),
    less_the_maximum=lambda m, x: (lambda z: z - z.exp().sum(-1, keepdim=True).log())(x - x.amax(-1, keepdim=True)),
    logarithm=lambda m, x: torch.log(torch.softmax(x, -1)),
)
spell(
    "log-sum-exp",
    r"\operatorname{logsumexp}",
    plain=lambda m, x: torch.log(torch.exp(x).sum(-1)),
    less_the_maximum=lambda m, x: (lambda top: (top + (x - top).exp().sum(-1, keepdim=True).log()).squeeze(-1))(
        x.amax(-1, keepdim=True)
    ),
)
spell(
    "softmax",
    r"\operatorname{softmax}",
    plain=lambda m, x: (lambda e: e / e.sum(-1, keepdim=True))(x.exp()),
    amax=lambda m, x: (lambda e: e / e.sum(-1, keepdim=True))((x - x.amax(-1, keepdim=True)).exp()),
    unsqueezed=lambda m, x: (lambda e: e / e.sum(-1)[..., None])(torch.exp(x - x.max(-1)[0].unsqueeze(-1))),
)

# Norms: γ and β are those of a norm, whatever their names are.


def mean(x, axis=-1):
    return x.mean(axis, keepdim=True)


def column(vector):
    return vector[:, None, None]


def normalise_groups(m, x):
    y = x.view(len(x), 4, -1)
    y = (y - mean(y)) / torch.sqrt(y.var(-1, keepdim=True, unbiased=False) + 1e-5)
    return y.view(x.shape) * column(m.g)[None] + column(m.b)[None]


def normalise_batch(m, x):
    mu, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, unbiased=False)
    return column(m.g) * (x - mu) / torch.sqrt(variance + 1e-5) + column(m.b)


def normalise_channels(m, x):
    mu = mean(x, 1)
    return column(m.g) * ((x - mu) / torch.sqrt(((x - mu) ** 2).mean(1, keepdim=True) + 1e-6)) + column(m.b)


spell(
    "layer norm",
    r"\sqrt{\sigma^2(\mathbf{x}) + 10^{-5}}} \odot \boldsymbol{\gamma} + \boldsymbol{\beta}",
    var=lambda m, x: (x - mean(x)) / torch.sqrt(x.var(-1, keepdim=True, correction=0) + 1e-5) * m.g + m.b,
    var_mean=lambda m, x: (lambda v, u: (x - u) * (v + 1e-5).rsqrt() * m.g + m.b)(
        *torch.var_mean(x, -1, correction=0, keepdim=True)
    ),
    moments=lambda m, x: (x - mean(x)) / (mean(x * x) - mean(x) ** 2 + 1e-5) ** 0.5 * m.g + m.b,
    sums=lambda m, x: (lambda c: m.b + m.g * c * ((c**2).sum(-1, keepdim=True) / D + 1e-5) ** -0.5)(
        x - x.sum(-1, keepdim=True) / D
    ),
    unsqueezed=lambda m, x: (lambda c: c / torch.sqrt((c * c).mean(-1) + 1e-5)[..., None] * m.g + m.b)(
        x - x.mean(-1)[..., None]
    ),
)
spell("layer norm", r"\sigma^2", "maps", channels_first=normalise_channels)
spell(
    "RMS norm",
    r"\sqrt{\operatorname{mean}({\mathbf{x}}^2) + 10^{-6}}} \odot \boldsymbol{\gamma}",
    rsqrt=lambda m, x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * m.g,
    sums=lambda m, x: x / torch.sqrt((x**2).sum(-1, keepdim=True) / D + 1e-6) * m.g,
    power=lambda m, x: m.g * x * (x.square().mean(-1, keepdim=True) + 1e-6) ** -0.5,
    unsqueezed=lambda m, x: m.g * (x / (x * x).mean(-1).add(1e-6).sqrt().unsqueeze(-1)),
)
spell(
    "RMS norm",
    r"\sqrt{\operatorname{mean}\left({\mathbf{x}}^2\right)} + 10^{-6}} \odot \boldsymbol{\gamma}",
    by_length=lambda m, x: x / (x.norm(dim=-1, keepdim=True) * D**-0.5 + 1e-6) * m.g,
)
spell("group norm", "Normalise groups of channels", "maps", by_hand=normalise_groups)
spell("batch norm", r"\text{by channel", "maps", by_hand=normalise_batch)
spell(
    "unit length",
    r"\right\rVert_2",
    root=lambda m, x: x / x.pow(2).sum(-1, keepdim=True).sqrt(),
    clamped=lambda m, x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12),
)
spell(
    "cosine similarity",
    r"\odot \mathbf{x}_{\text{y}}\right)}{\left\lVert \mathbf{x} \right\rVert",
    "pair",
    by_hand=lambda m, x, y: (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1)),
    of_unit_vectors=lambda m, x, y: (F.normalize(x, dim=-1) * F.normalize(y, dim=-1)).sum(-1),
)

# Losses.

spell(
    "cross-entropy",
    "Cross-entropy",
    "labels",
    gather=lambda m, x, t: -torch.log_softmax(x, -1).gather(-1, t[..., None]).mean(),
    likelihood=lambda m, x, t: F.nll_loss(F.log_softmax(x, -1).flatten(0, 1), t.flatten()),
    one_hot=lambda m, x, t: -(F.one_hot(t, D) * torch.log_softmax(x, -1)).sum(-1).mean(),
    log_sum_exp=lambda m, x, t: (x.logsumexp(-1) - x.gather(-1, t[..., None])[..., 0]).mean(),
    smoothed=lambda m, x, t: (
        lambda logs: (0.9 * -logs.gather(-1, t[..., None])[..., 0] + 0.1 * -logs.mean(-1)).mean()
    )(x.log_softmax(-1)),
)
spell("mean squared error", "Mean squared error", "pair", by_hand=lambda m, x, y: ((x - y) ** 2).mean())

# Positions.


def add_table(function):
    return lambda m, x: x + function(torch.arange(x.shape[1]).float()[:, None])


def assign_sines(places):
    table = torch.zeros(places.shape[0], D)
    rates = torch.exp(torch.arange(0, D, 2).float() * -(math.log(10000.0) / D))
    table[:, 0::2], table[:, 1::2] = torch.sin(places * rates), torch.cos(places * rates)
    return table


def choose_sines(places):
    k = torch.arange(D)
    angles = places / 10000 ** (2 * torch.div(k, 2, rounding_mode="floor") / D)
    return torch.where(k % 2 == 0, torch.sin(angles), torch.cos(angles))


def rates():
    return 10000 ** (torch.arange(0, D, 2) / D)


spell(
    "sinusoids",
    "10000^{2",
    stack=add_table(lambda p: (lambda a: torch.stack([a.sin(), a.cos()], -1).flatten(1))(p / rates())),
    cat=add_table(lambda p: (lambda a: torch.cat([a.sin(), a.cos()], -1))(p * (1 / rates()))),
    assigned=add_table(assign_sines),
    chosen=add_table(choose_sines),
    phase=add_table(
        lambda p: torch.sin(p / 10000 ** ((torch.arange(D) // 2) * 2 / D) + (torch.arange(D) % 2) * math.pi / 2)
    ),
)


def rotate(function):
    """Return heads of width 4 that a function rotates by the angles of their positions."""

    def rotary(m, x):
        heads = x.view(*x.shape[:2], HEADS, 4).transpose(1, 2)
        return function(heads, torch.arange(x.shape[1]).float()[:, None] * 10000 ** (-torch.arange(0, 4, 2) / 4))

    return rotary


def by_complex_numbers(q, a):
    pairs = torch.view_as_complex(q.reshape(*q.shape[:-1], 2, 2))
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(a), a)).flatten(3)


def by_halves(q, a):
    a = torch.cat([a, a], -1)
    return q * a.cos() + torch.cat([-q[..., 2:], q[..., :2]], -1) * a.sin()


def by_pairs(q, a):
    first, second, c, s = q[..., ::2], q[..., 1::2], a.cos(), a.sin()
    return torch.stack([first * c - second * s, second * c + first * s], -1).flatten(-2)


def by_cat(q, a):
    first, second, c, s = q[..., :2], q[..., 2:], a.cos(), a.sin()
    return torch.cat([first * c - second * s, second * c + first * s], -1)


def by_stack(q, a):
    a = a.repeat_interleave(2, -1)
    return q * a.cos() + torch.stack([-q[..., 1::2], q[..., ::2]], -1).reshape(q.shape) * a.sin()


spell(
    "rotary positions",
    r"\operatorname{rotate",
    complex_numbers=rotate(by_complex_numbers),
    halves=rotate(by_halves),
    pairs=rotate(by_pairs),
    cat=rotate(by_cat),
    stack=rotate(by_stack),
)

# Choices, pictures and patches.


def cut_by_reshape(x):
    rows = x.reshape(len(x), 3, x.shape[2] // 2, 2, x.shape[3] // 2, 2)
    return rows.permute(0, 2, 4, 1, 3, 5).reshape(len(x), -1, 12)


def embed(cut):
    return lambda m, x: cut(x) @ torch.ones(12, D)


spell("top-k", r"\operatorname{top", by_sort=lambda m, x: x.sort(-1, descending=True).values[..., :3])
spell("look-up", r"\left[\mathbf{x}\right]", "ids", one_hot=lambda m, t: F.one_hot(t, 11).float() @ m.table)
spell(
    "average pooling",
    r"\operatorname{avgpool}_{2 \times 2}",
    "photo",
    mean_of_a_view=lambda m, x: x.view(len(x), 3, x.shape[2] // 2, 2, x.shape[3] // 2, 2).mean((3, 5)),
)
spell(
    "patches",
    r"\mathcal{U}",
    "photo",
    unfold=embed(lambda x: F.unfold(x, 2, stride=2).transpose(1, 2).clone()),
    reshape=embed(cut_by_reshape),
    tensor_unfold=embed(lambda x: x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).reshape(len(x), -1, 12)),
)
spell(
    "patches",
    "Embed the patches",
    "photo",
    convolution=lambda m, x: (
        F.conv2d(x, m.g[:, None, None, None].expand(-1, 3, 2, 2), stride=2).flatten(2).transpose(1, 2)
    ),
)


def pool_tokens(pool):
    return lambda m, x, ids: m.up(pool(x, (ids != 0).float()))


spell(
    "masked mean",
    "Masked mean: ",
    "labels",
    sums=pool_tokens(lambda x, keep: (x * keep.unsqueeze(-1)).sum(1) / keep.sum(1, keepdim=True)),
    clamp=pool_tokens(lambda x, keep: (keep[..., None] * x).sum(1) / keep[..., None].sum(1).clamp(min=1e-9)),
    einsum=pool_tokens(lambda x, keep: torch.einsum("btd,bt->bd", x, keep) / keep.sum(1)[:, None]),
    fill=lambda m, x, ids: m.up(x.masked_fill(~(ids != 0).unsqueeze(-1), 0.0).sum(1) / (ids != 0).unsqueeze(-1).sum(1)),
)
spell(
    "weighted mean",
    "Weighted mean: ",
    by_a_gate=lambda m, x: (lambda w: m.up((w * x).sum(1) / w.sum(1)))(torch.sigmoid(m.q(x))),
)
spell(
    "look-up",
    "Look up the tokens",
    "ids",
    linear=lambda m, ids: F.linear(F.one_hot(ids, 11).float(), m.table.T),
    product=lambda m, ids: F.one_hot(ids, 11).float() @ m.table,
)


class Buffered(nn.Module):
    """Attention of one head with a mask that a buffer holds."""

    def __init__(self, mask):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.register_buffer("closed", mask)

    def forward(self, x):
        T = x.shape[1]
        scores = self.q(x) @ self.k(x).mT / math.sqrt(D)
        return scores.masked_fill(self.closed[:T, :T] == 0, -INF).softmax(-1) @ self.v(x)


@pytest.mark.parametrize(("band", "title"), [(12, "Causal mask"), (2, "Mask")])
def test_a_mask_of_a_buffer_is_called_causal_where_it_is(band, title):
    with torch.no_grad():
        module = Buffered(torch.ones(12, 12).tril().triu(1 - band)).eval()
        run = tracer.trace(module, *torch_inputs("tokens"), symbols={"B": 0, "T": 1})
    assert [step.title for step in run.steps if step.id.endswith("mask")] == [title]


DROPOUTS = {
    "above": (lambda x: x * (torch.rand_like(x) > 0.1) / 0.9, True),
    "below": (lambda x: x * (torch.rand_like(x) < 0.9) / 0.9, True),
    "bernoulli": (lambda x: x * torch.bernoulli(torch.full_like(x, 0.9)) * (1 / 0.9), True),
    "another share": (lambda x: x * (torch.rand_like(x) > 0.1) / 0.8, False),
    "normal numbers": (lambda x: x * (torch.randn_like(x) > 0.1) / 0.9, False),
    "flags of the input": (lambda x: x * (x > 0.1) / 0.9, False),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropout_by_hand_has_its_name(name):
    function, named = DROPOUTS[name]
    assert any(step.title == "Dropout" for step in trace_function(lambda m, x: m.up(function(x))).steps) == named


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_formula_has_its_name_however_it_is_spelled(name):
    function, said, kind = SPELLINGS[name]
    run = trace_function(function, kind)
    lines = [f"{step.title}: {step.latex}" for step in run.steps]
    assert any(said in line for line in lines), lines
    assert {step.verdict for step in run.steps} == {"verified"}, [(step.latex, step.verdict) for step in run.steps]
    checked = run.check().steps
    assert not any(step.refuted for step in checked) and all(step.checked for step in checked)


NEARLY: dict[str, tuple[Callable, str, str]] = {
    "diagonal of 1": (attend(lambda s, T: s.masked_fill(torch.ones(T, T).tril(1) == 0, -INF)), "Causal", "tokens"),
    "window": (
        attend(lambda s, T: s.masked_fill((torch.arange(T)[:, None] - torch.arange(T)).abs() > 2, -INF)),
        "Causal",
        "tokens",
    ),
    "window as long as the text": (
        attend(lambda s, T: s.masked_fill(~(lower(T).bool() & lower(T).bool().triu(-4)).bool(), -INF)),
        "Causal",
        "tokens",
    ),
    "scores over the number": (score(lambda q, k: (q / D**0.5) @ (k / D**0.5).mT), r"\sqrt{8}", "tokens"),
    "ReLU from 0.1": (lambda m, x: x.clamp(min=0.1), "ReLU", "tokens"),
    "another slope": (lambda m, x: m.up(x * torch.sigmoid(1.6 * x)), "QuickGELU", "tokens"),
    "sums of two axes": (
        lambda m, x, ids: m.up((x * (ids != 0)[..., None]).sum(1) / (ids != 0).sum()),
        " mean: ",
        "labels",
    ),
    "one-hot rows by a linear layer": (
        lambda m, ids: F.linear(F.one_hot(ids, 11).float(), m.table[:, :1].expand(-1, 11)),
        "Look up",
        "ids",
    ),
    "gate by tanh": (lambda m, x: (lambda a, b: a * torch.tanh(b))(*x.chunk(2, -1)), "GLU", "tokens"),
    "sum of labels": (lambda m, x, t: -torch.log_softmax(x, -1).gather(-1, t[..., None]).sum(), "Cross", "labels"),
    "softmax over another axis": (
        lambda m, x, t: -torch.log_softmax(x, 1).gather(-1, t[..., None]).mean(),
        "Cross",
        "labels",
    ),
    "half of the error": (lambda m, x, y: ((x - y) ** 2).mean() / 2, "squared error", "pair"),
    "one length": (lambda m, x, y: (x * y).sum(-1) / (x.norm(dim=-1) * x.norm(dim=-1)), "Cosine", "pair"),
    "columns": (lambda m, x: x.view(len(x), 3, 2, x.shape[2] // 2, -1, 2).mean((2, 5)), "avgpool", "photo"),
    "overlap": (lambda m, x: F.unfold(x, 2).transpose(1, 2) @ torch.ones(12, D), "patches", "photo"),
    "least of a sort": (lambda m, x: x.sort(-1).values[..., 1:4], "top", "tokens"),
}


@pytest.mark.parametrize("name", NEARLY)
def test_what_is_nearly_a_formula_has_not_its_name(name):
    function, unsaid, kind = NEARLY[name]
    steps = trace_function(function, kind).steps
    lines = [f"{step.title}: {step.latex}" for step in steps]
    assert steps and not any(unsaid in line for line in lines), lines
    assert "refuted" not in {step.verdict for step in steps}
