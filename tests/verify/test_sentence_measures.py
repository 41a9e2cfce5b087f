"""Measures of sentences: each holds for right lines, and finds a deliberately wrong one."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import tracer
from tracer.inputs.model_inputs import Inputs
from tracer.record import Trace
from tracer.verify.checks.reference_run import plain
from tracer.verify.checks.sentences import _has_root, check_explanation_numbers

D, HEADS, HIDDEN = 16, 2, 24


class Attention(nn.Module):
    """Attention with queries, keys and values in one product, of which the first features of each head are rotated."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x, cosine, sine):
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        q, k = (rotate(one, cosine, sine) for one in (q, k))
        return self.out(((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v).transpose(1, 2).flatten(2))


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    width = cosine.shape[-1]
    first, rest = x[..., :width], x[..., width:]
    half = torch.cat([-first[..., width // 2 :], first[..., : width // 2]], -1)
    turned = first * cosine + half * sine
    return torch.cat([turned, rest], -1) if rest.shape[-1] else turned


class MLP(nn.Module):
    """An MLP; the gate and the expanded tokens of a gated one are one product."""

    def __init__(self, activation: Callable, gated: bool):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * HIDDEN if gated else HIDDEN), nn.Linear(HIDDEN, D)
        self.activation, self.gated = activation, gated

    def forward(self, x):
        if not self.gated:
            return self.down(self.activation(self.up(x)))
        gate, hidden = self.up(x).chunk(2, -1)
        return self.down(self.activation(gate) * hidden)


class Block(nn.Module):
    """A block whose branches follow one another, or are parallel; each may have a factor for each feature."""

    def __init__(self, activation: Callable, gated: bool, parallel: bool, scaled: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention, self.mlp, self.parallel = Attention(), MLP(activation, gated), parallel
        self.gamma1, self.gamma2 = (nn.Parameter(0.5 + torch.rand(D)) if scaled else 1 for _ in range(2))

    def forward(self, x, cosine, sine):
        if self.parallel:
            return x + self.attention(self.norm1(x), cosine, sine) + self.mlp(self.norm2(x))
        x = x + self.gamma1 * self.attention(self.norm1(x), cosine, sine)
        return x + self.gamma2 * self.mlp(self.norm2(x))


class Net(nn.Module):
    """Two such blocks; that many features of each head are `turned` by position."""

    def __init__(self, turned: int, **options: Any):
        super().__init__()
        self.embed, self.turned = nn.Linear(5, D), turned
        self.blocks = nn.ModuleList(Block(**options) for _ in range(2))

    def forward(self, x):
        angles = torch.outer(torch.arange(x.shape[1]), 10.0 ** -torch.arange(self.turned // 2))
        angles = torch.cat([angles, angles], -1)
        cosine, sine, x = angles.cos(), angles.sin(), self.embed(x)
        for block in self.blocks:
            x = block(x, cosine, sine)
        return x


NETS = {
    "gated": Net(8, activation=nn.functional.silu, gated=True, parallel=False, scaled=False),
    "parallel": Net(4, activation=nn.functional.relu, gated=False, parallel=True, scaled=False),
    "scaled": Net(8, activation=nn.functional.gelu, gated=False, parallel=False, scaled=True),
}


@cache
def ran(name: str) -> tuple[SimpleNamespace, Inputs, Trace]:
    torch.manual_seed(0)
    net, x = NETS[name].eval(), torch.randn(1, 7, 5)
    with torch.no_grad():
        return SimpleNamespace(net=net), Inputs((x,)), tracer.trace(net, x, symbols={"B": 0, "T": 1})


@pytest.mark.parametrize("name", NETS)
def test_what_is_said_of_right_lines_holds(name):
    model, inputs, trace = ran(name)
    assert {step.verdict for step in trace.steps} == {"verified"}
    assert list(check_explanation_numbers(plain(model, inputs, trace))) == []


Values = Callable[[str], torch.Tensor]
"""The tensor of a step of the same block, by the rest of its id."""


def halves(of: Values) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gate's features of a packed product, and the others."""
    return of("mlp.hidden").chunk(2, -1)


def swap_pairs(x: torch.Tensor) -> torch.Tensor:
    """Return the rows with their lengths unchanged, and the members of their pairs swapped."""
    return x[..., [1, 0, *range(2, x.shape[-1])]]


GAMMA = NETS["scaled"].blocks[0].gamma1
ATTENTION_ADDS, MLP_ADDS, STRAIGHT, TURNED = "Attention adds", "The MLP's result", "The sum also", "Each pair"
MISTAKES: dict[str, tuple[str, str, str, Callable[[torch.Tensor, Values], torch.Tensor]]] = {
    "nothing is added": ("gated", "attention.residual", ATTENTION_ADDS, lambda x, of: x - of("attention.output")),
    "it is subtracted": ("gated", "attention.residual", ATTENTION_ADDS, lambda x, of: x - 2 * of("attention.output")),
    "half is added": ("gated", "attention.residual", ATTENTION_ADDS, lambda x, of: x - of("attention.output") / 2),
    "it replaces the token": ("gated", "attention.residual", ATTENTION_ADDS, lambda x, of: of("attention.output")),
    "the MLP subtracts": ("gated", "mlp.residual", MLP_ADDS, lambda x, of: x - 2 * of("mlp.output")),
    "one branch alone is added": ("parallel", "mlp.residual", ATTENTION_ADDS, lambda x, of: x - of("mlp.output")),
    "the other branch alone": ("parallel", "mlp.residual", ATTENTION_ADDS, lambda x, of: x - of("attention.output")),
    "branches without the token": (
        "parallel", "mlp.residual", ATTENTION_ADDS, lambda x, of: of("attention.output") + of("mlp.output"),
    ),
    "a branch counts half": ("parallel", "mlp.residual", ATTENTION_ADDS, lambda x, of: x - of("mlp.output") / 2),
    "without the factor": (
        "scaled", "attention.residual", ATTENTION_ADDS, lambda x, of: x + (1 - GAMMA) * of("attention.output"),
    ),
    "by another factor": (
        "scaled", "attention.residual", ATTENTION_ADDS,
        lambda x, of: x + (GAMMA.flip(0) - GAMMA) * of("attention.output"),
    ),
    "the factor at both": ("scaled", "attention.residual", ATTENTION_ADDS, lambda x, of: GAMMA * x),
    "a stream that is stretched": ("gated", "attention.residual", STRAIGHT, lambda x, of: 2 * x),
    "a sum at the end that is stretched": ("parallel", "mlp.residual", STRAIGHT, lambda x, of: 2 * x),
    "a sum that is not a sum": ("scaled", "attention.residual", STRAIGHT, lambda x, of: of("norm2")),
    "a gate of its own features": (
        "gated", "mlp.gated", "The gate is", lambda x, of: of("mlp.activation") * halves(of)[0],
    ),
    "a gate that is not activated": ("gated", "mlp.gated", "The gate is", lambda x, of: halves(of)[0] * halves(of)[1]),
    "a gate that is added": ("gated", "mlp.gated", "The gate is", lambda x, of: of("mlp.activation") + halves(of)[1]),
    "the gate alone": ("gated", "mlp.gated", "The gate is", lambda x, of: of("mlp.activation")),
    "a gate that shuts more": ("gated", "mlp.activation", "SiLU keeps", lambda x, of: halves(of)[0].relu()),
    "a gate that is GELU": (
        "gated", "mlp.activation", "SiLU keeps", lambda x, of: nn.functional.gelu(halves(of)[0]),
    ),
    "negative numbers as large": ("gated", "mlp.activation", "SiLU keeps", lambda x, of: halves(of)[0].abs()),
    "an activation left out": ("scaled", "mlp.activation", "GELU keeps", lambda x, of: of("mlp.hidden")),
    "an activation by tanh": (
        "scaled", "mlp.activation", "GELU keeps", lambda x, of: nn.functional.gelu(8 * x, approximate="tanh"),
    ),
    "what is negative kept": ("parallel", "mlp.activation", "ReLU keeps", lambda x, of: -(-of("mlp.hidden")).relu()),
    "leaks": (
        "parallel", "mlp.activation", "ReLU keeps", lambda x, of: nn.functional.leaky_relu(of("mlp.hidden"), 0.01),
    ),
    "not turned": ("gated", "attention.rotated query", TURNED, lambda x, of: heads(of, 0, 8)),
    "not turned in part": ("parallel", "attention.rotated key", TURNED, lambda x, of: heads(of, 1, 4)),
    "stretched": ("gated", "attention.rotated key", TURNED, lambda x, of: 1.1 * x),
    "stretched in part": ("parallel", "attention.rotated query", TURNED, lambda x, of: 1.1 * x),
    "of other tokens": ("gated", "attention.rotated key", TURNED, lambda x, of: x.flip(-2)),
    "turned across pairs": ("gated", "attention.rotated query", TURNED, lambda x, of: swap_pairs(x)),
    "turned across pairs in part": ("parallel", "attention.rotated key", TURNED, lambda x, of: swap_pairs(x)),
}  # fmt: skip
"""Mistakes in the tensor of a line of the first block: (net, line, the sentence that is then false, the tensor)."""


def heads(of: Values, place: int, width: int) -> torch.Tensor:
    """Return the first features of the heads in a packed product, of queries (0) or keys (1)."""
    return of("attention.packed").chunk(3, -1)[place].unflatten(-1, (HEADS, -1)).transpose(1, 2)[..., :width]


@pytest.mark.parametrize("mistake", MISTAKES)
@torch.no_grad()
def test_a_line_that_is_wrong_is_found(mistake):
    name, line, sentence, change = MISTAKES[mistake]
    model, inputs, trace = ran(name)
    step = trace.step(f"blocks.0.{line}")
    value = change(trace.value(step), lambda id: trace.value(f"blocks.0.{id}"))
    assert value.shape == step.shape
    changed = replace(trace, values={**trace.values, step.value: value})
    found = list(check_explanation_numbers(plain(model, inputs, changed)))
    assert any(one.startswith(f"“{sentence}") and one.endswith(f"of step {step.id!r}") for one in found), found


class Fused(nn.Module):
    """Attention by PyTorch's own function, which chooses its kernel or plain ops."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        q, k, v = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_one_kernel_does_all_of_attention_only_where_it_ran(backend):
    net, x = Fused().eval(), torch.randn(1, 5, D)
    with torch.no_grad(), sdpa_kernel(backend):
        trace = tracer.trace(net, x, symbols={"B": 0, "T": 1})
        assert list(check_explanation_numbers(plain(SimpleNamespace(net=net), Inputs((x,)), trace))) == []
    assert any("One kernel" in step.why for step in trace.steps) is (backend is SDPBackend.FLASH_ATTENTION)


@pytest.mark.parametrize(
    ("latex", "d", "divides"),
    [
        (r"\frac{\mathbf{S}}{\sqrt{12}}", 12, True),
        (r"\frac{\mathbf{S}}{2 \sqrt{3}}", 12, True),
        (r"\frac{\mathbf{S}}{\sqrt{3}}", 12, False),
        (r"\frac{\mathbf{S}}{3 \sqrt{3}}", 12, False),
        (r"\frac{\mathbf{S}}{\sqrt{128}}", 12, False),
        (r"\frac{\mathbf{S}}{12}", 12, False),
    ],
)
def test_scores_are_divided_by_the_root_of_their_own_width(latex, d, divides):
    assert _has_root(latex, d) is divides
