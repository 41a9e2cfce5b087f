"""Functions in a model's equations against PyTorch's own, in float64 and over more numbers than a run has."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import torch
import torch.nn.functional as F

from tracer.expr import Node
from tracer.expr.nn.attention_masks import CausalMask, PrefixMask
from tracer.verify.checks.reference_run import PlainRun

X = torch.linspace(-9, 9, 420, dtype=torch.float64).reshape(7, 60) ** 3 / 81
"""Numbers from -9 to 9, most of them near 0."""


def problems(run: PlainRun) -> Iterator[str]:
    """Execute each function that the equations name once, on `X`."""
    examples: dict[str, Node] = {}
    for line in getattr(run.model, "lines", ()):
        for node in _nodes(line.equation):
            if type(node).__name__ in PYTORCH:
                examples.setdefault(f"{type(node).__name__} {[a for a in node.args if a.is_number]}", node)
    for name, node in examples.items():
        scale = torch.linspace(0.5, 2, 60, dtype=torch.float64)
        arguments = [X, scale, scale.flip(0) - 1][: len(node.operands)]
        inner = node.run(float, *arguments)
        expected = PYTORCH[type(node).__name__](*(float(a) for a in node.args if a.is_number), *arguments)
        if not (inner - expected).abs().max() <= 1e-12:
            yield f"{name} differs from PyTorch's by {float((inner - expected).abs().max()):.1e}"

    for line in getattr(run.model, "lines", ()):
        yield from _other_eps(run, line)
    yield from _masks()


def _masks() -> Iterator[str]:
    """Check masks of five tokens, cell by cell: -∞ or another lowest number where a query may not attend."""
    cases = ((CausalMask(5), 0, -inf), (CausalMask(5, -7.0), 0, -7.0), (PrefixMask(5, 3), 3, -inf))
    for node, first, lowest in cases:
        expected = [[0.0 if j <= i or j < first else lowest for j in range(5)] for i in range(5)]
        if node.run(int).tolist() != expected:
            yield f"{node} is {node.run(int).tolist()}"


def _other_eps(run: PlainRun, line) -> Iterator[str]:
    """Check that the ε of a norm in an equation is that of the module with its γ."""
    for node in _nodes(line.equation):
        if type(node).__name__ not in ("LayerNorm", "RMSNorm"):
            continue
        path = node.operands[1].key.removeprefix("parameter ").rpartition(".")[0]
        module = run.model.net.get_submodule(path)
        ran = next((getattr(module, name) for name in ("eps", "variance_epsilon") if hasattr(module, name)), None)
        if ran is not None and float(node.args[0]) != ran:
            yield f"step {line.id!r} has an ε of {float(node.args[0])}, {path} has {ran}"


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for operand in node.operands:
        yield from _nodes(operand)


def _rms(eps: float, x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], gamma, eps)


PYTORCH = {
    "GELU": F.gelu,
    "GELUTanh": lambda x: F.gelu(x, approximate="tanh"),
    "ReLU": F.relu,
    "SiLU": F.silu,
    "Tanh": torch.tanh,
    "Softmax": lambda x: F.softmax(x, dim=-1),
    "LayerNorm": lambda eps, x, *scales: F.layer_norm(x, x.shape[-1:], *scales, eps=eps),
    "RMSNorm": _rms,
}
"""What PyTorch calls them: numbers first, then tensors."""
