"""The textbook of a transformer block: its steps as equations, shared by all models that have such blocks.

A `Page` writes the lines of one block or of what stands outside blocks: it knows the path of the modules, the layer's
number in superscripts, and whether there are biases.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from tracer.derive.steps import Line, Place
from tracer.derive.whys import BLOCK as WHY
from tracer.equations import GELU, Heads, Joined, LayerNorm, Node, Softmax, Tensor, parameter, weight
from tracer.symbols.notation import symbol

D, h, d_k, d_ff = map(symbol, ("D", "h", "d_k", "d_ff"))


class Page:
    """Lines of the modules under `prefix` (`"block1"`, or `""` outside of blocks), for block `layer`, from 1.

    `tower` marks the tensors of one tower in models of several: `"dec"` writes them with a superscript of that name.
    """

    def __init__(
        self, prefix: str = "", layer: int | None = None, *, bias: bool = True, eps: float = 1e-6, tower: str = ""
    ):
        self.prefix, self.layer, self.bias, self.eps, self.tower = prefix, layer, bias, eps, tower
        marks = [rf"\mathrm{{{tower}}}"] * bool(tower) + [f"({layer})"] * (layer is not None)
        self.tag = f"^{{{' '.join(marks)}}}" if marks else ""
        self.lines: list[Line] = []

    def path(self, name: str) -> str:
        return f"{self.prefix}.{name}" if self.prefix and name else self.prefix or name

    def tensor(self, name: str, shape: tuple, step: str) -> Tensor:
        """A tensor that step `step` of this page makes."""
        return Tensor(rf"{name}{self.tag}", shape, self.path(step))

    def parameter(self, name: str, shape: tuple, path: str) -> Tensor:
        return parameter(rf"{name}{self.tag}", shape, self.path(path))

    def linear(self, value: Node, name: str, shape: tuple, path: str, *, bias: bool | None = None) -> Node:
        """`X W + b` of the `nn.Linear` at `path`, whose weight is `[in, out]` in the equation."""
        product = value @ weight(rf"\mathbf{{W}}_{{{name}}}{self.tag}", shape, self.path(f"{path}.weight"))
        if not (self.bias if bias is None else bias):
            return product
        return product + self.parameter(rf"\mathbf{{b}}_{{{name}}}", shape[-1:], f"{path}.bias")

    def norm(self, value: Node, name: str, path: str) -> Node:
        """The layer norm at `path`."""
        gamma = self.parameter(rf"\boldsymbol{{\gamma}}_{{{name}}}", (D,), f"{path}.weight")
        beta = [self.parameter(rf"\boldsymbol{{\beta}}_{{{name}}}", (D,), f"{path}.bias")] if self.bias else []
        return LayerNorm(self.eps, value, gamma, *beta)

    def line(self, stage: str, title: str, made: Tensor, equation: Node, place: Place | None, why: str, note: str = ""):
        """Writes one line, `made = equation`, and gives its tensor back for the lines after it."""
        if place is not None:
            place = place._replace(module=self.path(place.module))
        layer = None if self.layer is None else self.layer - 1
        self.lines.append(Line(made.key, stage, title, made, equation, place, why, layer=layer, note=note))
        return made


def heads(page: Page, x: Tensor, width: sympy.Expr = d_k) -> tuple[Tensor, Tensor, Tensor]:
    """Writes **Q**, **K** and **V** of `x`, `[B, S, D]`, dealt out to heads: `[B, h, S, d_k]` each."""
    batch, S, joined = *x.shape[:2], h * width

    def dealt(name: str, step: str, nth: int, title: str) -> Tensor:
        made = page.tensor(rf"\mathbf{{{name}}}", (batch, h, S, width), f"attention.{step}")
        equation = Heads(page.linear(x, name, (D, joined), f"attention.{step}"), h)
        return page.line("attention", title, made, equation, Place("attention", "transpose", nth), WHY[step])

    return dealt("Q", "query", 0, "Queries"), dealt("K", "key", 1, "Keys"), dealt("V", "value", 2, "Values")


def attention(page: Page, x: Tensor, mask: Tensor | None = None, width: sympy.Expr = d_k) -> Tensor:
    """Writes multi-head attention of `x`, `[B, S, D]`, with an additive mask `[S, S]`; returns **O**, `[B, S, D]`.

    Source: Vaswani et al. 2017, equation 1 and section 3.2.2.
    """
    batch, S, joined = *x.shape[:2], h * width
    q, k, v = heads(page, x, width)
    scores = page.tensor(r"\mathbf{S}", (batch, h, S, S), "attention.scores")
    product = q @ k.T / sympy.sqrt(width)
    if mask is None:
        page.line("attention", "Scores", scores, product, Place("attention", "div"), WHY["scores"])
    else:
        page.line("attention", "Scores", scores, product + mask, Place("attention", "add"), WHY["masked scores"])
    weights = page.tensor(r"\mathbf{A}", (batch, h, S, S), "attention.weights")
    page.line("attention", "Attention weights", weights, Softmax(scores), Place("attention", "softmax"), WHY["weights"])
    context = page.tensor(r"\mathbf{H}", (batch, S, joined), "attention.context")
    page.line("attention", "Context", context, Joined(weights @ v), Place("attention", "reshape"), WHY["context"])
    output = page.tensor(r"\mathbf{O}", (batch, S, D), "attention.output")
    equation = page.linear(context, "O", (joined, D), "attention.output")
    return page.line("attention", "Output projection", output, equation, Place("attention.output"), WHY["output"])


def mlp(page: Page, x: Tensor, activation: type[Node] = GELU, module: str = "gelu") -> Tensor:
    """Writes the MLP of `x`, `[B, S, D]`; returns **F**, `[B, S, D]`. Source: Vaswani et al. 2017, section 3.3."""
    batch, S = x.shape[:2]
    hidden = page.tensor(r"\mathbf{U}", (batch, S, d_ff), "mlp.hidden")
    equation = page.linear(x, "1", (D, d_ff), "mlp.expand")
    page.line("mlp", "Expand", hidden, equation, Place("mlp.expand"), WHY["hidden"])
    active = page.tensor(r"\mathbf{G}", (batch, S, d_ff), "mlp.activation")
    page.line("mlp", "Activate", active, activation(hidden), Place(f"mlp.{module}"), WHY[activation.__name__])
    output = page.tensor(r"\mathbf{F}", (batch, S, D), "mlp.output")
    equation = page.linear(active, "2", (d_ff, D), "mlp.contract")
    return page.line("mlp", "Contract", output, equation, Place("mlp.contract"), WHY["contract"])


def noted(lines: list[Line], notes: dict[str, str]) -> list[Line]:
    """The same lines, with a note beside each step whose id, without its block, `notes` has."""
    return [
        replace(line, note=notes.get(line.id if line.layer is None else line.id.partition(".")[2], line.note))
        for line in lines
    ]


def block_lines(
    layer: int,
    x: Tensor,
    *,
    mask: Tensor | None = None,
    bias: bool = True,
    activation: type[Node] = GELU,
    eps: float = 1e-6,
    part: str = "",
    tower: str = "",
) -> list[Line]:
    """The lines of pre-norm block `layer` (from 1), whose input is `x`, `[B, S, D]`; the last one makes its output.

    In models of several towers `part` is the path of the block's tower, and `tower` its mark in superscripts.
    """
    path = f"{part}.block{layer}" if part else f"block{layer}"
    page, shape = Page(path, layer, bias=bias, eps=eps, tower=tower), x.shape
    normed = page.tensor(r"\tilde{\mathbf{X}}", shape, "norm1")
    page.line("norm", "Normalise each token", normed, page.norm(x, "1", "norm1"), Place("norm1"), WHY["norm1"])
    found = attention(page, normed, mask)
    middle = page.tensor(r"\mathbf{X}'", shape, "attention.residual")
    page.line("attention", "Residual sum", middle, x + found, Place("", "add", 0), WHY["residual"])
    normed = page.tensor(r"\hat{\mathbf{X}}", shape, "norm2")
    page.line("norm", "Normalise again", normed, page.norm(middle, "2", "norm2"), Place("norm2"), WHY["norm2"])
    found = mlp(page, normed, activation)
    out = page.tensor(r"\mathbf{X}", shape, "mlp.residual")
    page.line("mlp", "Residual sum", out, middle + found, Place("", "add", 1), WHY["residual2"])
    return page.lines
