"""The textbook of a transformer block as libraries write it: packed or separate projections, fused attention, norms
before or after.

A family says where its code makes each tensor, as a `Table`; the equations are the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import sympy
import torch

from tracer.derive.steps import Line, Place
from tracer.equations import (
    GELU,
    CausalMask,
    Columns,
    Concat,
    Flattened,
    Heads,
    Joined,
    Node,
    OneRun,
    Part,
    Provided,
    Row,
    Softmax,
    Split,
    Squeezed,
    Stacked,
    Swapped,
    Tensor,
    Unflattened,
    Unfold,
    Unrolled,
)
from tracer.models.shared.textbook import Page
from tracer.models.vit import WHY as READ
from tracer.sources.why import WHY
from tracer.symbols.notation import symbol

B, D, h, d_k, d_ff = map(symbol, ("B", "D", "h", "d_k", "d_ff"))
PACK = r"\mathbf{QKV}"


@dataclass(frozen=True)
class Table:
    """Where a family's block makes the tensors of the textbook, and where it keeps their parameters.

    `places` maps a step to its `Place` and `parameters` a linear map or norm to the path of its module, or to those
    of its weight and bias, all relative to the block. Steps: norm1, packed or query, key, value, context, output,
    residual1, norm2, hidden, activation, contract, residual2; a family without a fused kernel has scores and weights
    too. `post` says that the norms come after the sums (Vaswani et al. 2017), `sequence_first` that the packed product
    is split and laid out as `[3, S, B, D]` and the context as `[S·B, h·d_k]`, `transposed` that weights are
    `[out, in]` as in `nn.Linear`, and not `[in, out]`.
    """

    places: dict[str, Place]
    parameters: dict[str, str | tuple[str, str]]
    activation: type[Node] = GELU
    eps: float = 1e-6
    post: bool = False
    sequence_first: bool = False
    transposed: bool = True
    notes: dict[str, str] = field(default_factory=dict)


class Writer:
    """Writes the lines of block `layer` (from 1) under `prefix`, whose input is `x`, `[B, S, D]`."""

    def __init__(self, table: Table, prefix: str, layer: int | None):
        self.table, self.page = table, Page(prefix, layer, eps=table.eps)

    def write(
        self, step: str, stage: str, title: str, name: str, shape: tuple, equation: Node, why: str = ""
    ) -> Tensor:
        """One line, made where the table says; recomputed where it says nothing."""
        made = self.page.tensor(name, shape, STEPS.get(step, step))
        place, note = self.table.places.get(step), self.table.notes.get(step, "")
        return self.page.line(stage, title, made, equation, place, WHY[why or step], note)

    def linear(self, value: Node, name: str, shape: tuple, step: str) -> Node:
        """`X W + b` with the parameters of a linear map."""
        paths = self.table.parameters[step]
        matrix, bias = paths if isinstance(paths, tuple) else (f"{paths}.weight", f"{paths}.bias")
        latex = rf"\mathbf{{W}}_{{{name}}}{self.page.tag}"
        matrix = Tensor(latex, shape, f"parameter {self.page.path(matrix)}", transposed=self.table.transposed)
        return value @ matrix + self.page.parameter(rf"\mathbf{{b}}_{{{name}}}", shape[-1:], bias)

    def norm(self, value: Node, name: str, step: str) -> Node:
        """The layer norm of a step."""
        return self.page.norm(value, name, self.table.parameters[step])

    def projections(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """**Q**, **K** and **V**, `[B, h, S, d_k]` each, from one packed product or from three."""
        batch, S = x.shape[:2]
        titles = {"query": "Queries", "key": "Keys", "value": "Values"}
        if "packed" in self.table.parameters and self.table.sequence_first:
            equation = Split(self.linear(Swapped(x, batch, S), "QKV", (D, 3 * D), "packed"), 3)
            packed = self.write("packed", "attention", "Packed product", PACK, (3, S, batch, D), equation, "packed")
            parts = [Swapped(Part(packed, i), S, batch) for i in range(3)]
        elif "packed" in self.table.parameters:
            equation = self.linear(x, "QKV", (D, 3 * D), "packed")
            packed = self.write("packed", "attention", "Packed product", PACK, (batch, S, 3 * D), equation, "packed")
            parts = [Columns(packed, i * D, (i + 1) * D) for i in range(3)]
        else:
            parts = [self.linear(x, step[0].upper(), (D, h * d_k), step) for step in titles]
        return tuple(
            self.write(
                step,
                "attention",
                title,
                rf"\mathbf{{{step[0].upper()}}}",
                (batch, h, S, d_k),
                Heads(part, h),
            )
            for (step, title), part in zip(titles.items(), parts, strict=True)
        )

    def attention(self, x: Tensor, mask: Node | None = None) -> Tensor:
        """Multi-head attention of `x`, `[B, S, D]`, with an additive mask; returns **O**, `[B, S, D]`."""
        batch, S = x.shape[:2]
        q, k, v = self.projections(x)
        scores = q @ k.T / sympy.sqrt(d_k)
        scores, why = (scores, "scores") if mask is None else (scores + mask, "masked scores")
        scores = self.write("scores", "attention", "Scores", r"\mathbf{S}", (batch, h, S, S), scores, why)
        weights = Softmax(scores)
        weights = self.write("weights", "attention", "Attention weights", r"\mathbf{A}", (batch, h, S, S), weights)
        context, shape = Joined(weights @ v), (batch, S, h * d_k)
        if self.table.sequence_first:
            context, shape = Flattened(Swapped(context, batch, S)), (S * batch, h * d_k)
        context = self.write("context", "attention", "Context", r"\mathbf{H}", shape, context)
        equation = self.linear(context, "O", (h * d_k, D), "output")
        if self.table.sequence_first:
            equation = Swapped(Unflattened(equation, S), S, batch)
        return self.write("output", "attention", "Output projection", r"\mathbf{O}", (batch, S, D), equation, "output")

    def mlp(self, x: Tensor) -> Tensor:
        """The two-layer MLP of `x`, `[B, S, D]`; returns **F**, `[B, S, D]`."""
        batch, S = x.shape[:2]
        equation = self.linear(x, "1", (D, d_ff), "hidden")
        hidden = self.write("hidden", "mlp", "Expand", r"\mathbf{U}", (batch, S, d_ff), equation)
        equation, why = self.table.activation(hidden), self.table.activation.__name__
        active = self.write("activation", "mlp", "Activate", r"\mathbf{G}", (batch, S, d_ff), equation, why)
        equation = self.linear(active, "2", (d_ff, D), "contract")
        return self.write("contract", "mlp", "Contract", r"\mathbf{F}", (batch, S, D), equation)

    def block(self, x: Tensor, mask: Node | None = None) -> Tensor:
        """The whole block; returns **X**, `[B, S, D]`."""
        shape = x.shape
        if self.table.post:
            middle = x + self.attention(x, mask)
            middle = self.write("residual1", "attention", "Residual sum", r"\mathbf{Y}", shape, middle, "residual")
            middle = self.norm(middle, "1", "norm1")
            middle = self.write("norm1", "norm", "Normalise each token", r"\mathbf{X}'", shape, middle, "norm after")
            out = middle + self.mlp(middle)
            out = self.write("residual2", "mlp", "Residual sum", r"\mathbf{Y}'", shape, out, "sum before norm")
            return self.write(
                "norm2",
                "norm",
                "Normalise again",
                r"\mathbf{X}",
                shape,
                self.norm(out, "2", "norm2"),
                "norm after 2",
            )
        normed = self.norm(x, "1", "norm1")
        normed = self.write("norm1", "norm", "Normalise each token", r"\tilde{\mathbf{X}}", shape, normed)
        middle = x + self.attention(normed, mask)
        middle = self.write("residual1", "attention", "Residual sum", r"\mathbf{X}'", shape, middle, "residual")
        normed = self.norm(middle, "2", "norm2")
        normed = self.write("norm2", "norm", "Normalise again", r"\hat{\mathbf{X}}", shape, normed)
        return self.write("residual2", "mlp", "Residual sum", r"\mathbf{X}", shape, middle + self.mlp(normed))


def causal_mask(page: Page, places: Tensor, module: str, within: str) -> Tensor:
    """Writes **r**, whether the place numbers `[1, T]` count one text, and the causal mask **M** that the code takes
    since they do; returns **M**.

    Attention that is written out adds it to the scores, `[B, 1, T, T]`, made in `module`. The fused kernel of the step
    `within` only has it as a flag: there it is `[T, T]` and recomputed.
    """
    T = places.shape[-1]
    made = page.tensor(r"r", (), "one")
    one = page.line("attention", "Is it one text?", made, OneRun(places), Place(module, "all"), WHY["one"])
    if within:
        made, equation, place, why = page.tensor(r"\mathbf{M}", (T, T), "mask"), CausalMask(T), None, "flag"
    else:
        made, place, why = page.tensor(r"\mathbf{M}", (B, 1, T, T), "mask"), Place(module, "where"), "mask"
        equation = Stacked(CausalMask(T, torch.finfo(torch.float32).min), B, 1)
    page.line("attention", "Causal mask", made, Provided(equation, one), place, WHY[why])
    page.lines[-1] = replace(page.lines[-1], within=within)
    return made


def photo_tokens(page: Page, image: str, kernels: str, cls: str, position: str, places: dict[str, Place]) -> Tensor:
    """Writes all from the photo to the first block of a ViT that cuts its patches by a strided convolution.

    Takes the name of the input, the paths of the convolution, the CLS token `[1, 1, D]` and the positions
    `[1, N + 1, D]`, and the places of the steps embedding, sequence and position; returns **X**⁽⁰⁾, `[B, N + 1, D]`.
    """
    B, H, W, C, P, N = map(symbol, "BHWCPN")
    image = Tensor(r"\mathbf{X}_{\mathrm{img}}", (B, C, H, W), f"input {image}")
    matrix = Unrolled(page.parameter(r"\mathbf{W}_E", (D, C, P, P), f"{kernels}.weight"))
    equation = Unfold(image, P) @ matrix + page.parameter(r"\mathbf{b}_E", (D,), f"{kernels}.bias")
    made = page.tensor(r"\mathbf{I}", (B, N, D), "embedding")
    x = page.line("embedding", "Embed the patches", made, equation, places["embedding"], WHY["convolved"])
    made = page.tensor(r"\mathbf{X}_{\mathrm{seq}}", (B, N + 1, D), "sequence")
    token = Squeezed(page.parameter(r"\mathbf{x}_{\mathrm{cls}}", (1, 1, D), cls), 2)
    x = page.line("embedding", "CLS in front", made, Concat(token, x), places["sequence"], WHY["cls"])
    made = page.tensor(r"\mathbf{X}^{(0)}", (B, N + 1, D), "position")
    equation = x + Squeezed(page.parameter(r"\mathbf{P}", (1, N + 1, D), position), 1)
    return page.line("position", "Add positions", made, equation, places["position"], WHY["patch positions"])


STEPS = {
    "packed": "attention.packed",
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "scores": "attention.scores",
    "weights": "attention.weights",
    "context": "attention.context",
    "output": "attention.output",
    "residual1": "attention.residual",
    "hidden": "mlp.hidden",
    "activation": "mlp.activation",
    "contract": "mlp.output",
    "residual2": "mlp.residual",
}
"""Step to id inside its block, as our own models have them."""


def classified(page: Page, x: Tensor, table: Table, blocks: list[str], norm: str, head: str) -> list[Line]:
    """Writes the blocks of a ViT classifier whose first input is `x`, `[B, N + 1, D]`, then the last norm, the CLS
    token and the class scores **Z**, `[B, K]`; takes the paths of blocks, norm and head, returns all lines."""
    B, K = map(symbol, "BK")
    x = encoded(page, x, table, blocks, norm)
    made = page.tensor(r"\mathbf{x}_f", (B, D), "cls")
    x = page.line("head", "Take the CLS token", made, Row(x, 0), Place("", "getitem", -1), READ["take"])
    made = page.tensor(r"\mathbf{Z}", (B, K), "logits")
    equation = page.linear(x, r"\mathrm{cls}", (D, K), head)
    page.line("head", "Classify", made, equation, Place(head), READ["head"])
    return page.lines


def encoded(page: Page, x: Tensor, table: Table, blocks: list[str], norm: str) -> Tensor:
    """Writes the blocks of a ViT whose first input is `x`, `[B, N + 1, D]`, and the last norm; returns **X**_f."""
    for layer, path in enumerate(blocks, start=1):
        writer = Writer(table, path, layer)
        x = writer.block(x)
        page.lines += writer.page.lines
    made = page.tensor(r"\mathbf{X}_f", x.shape, "norm")
    return page.line("norm", "Last norm", made, page.norm(x, "f", norm), Place(norm), READ["norm"])


def pooled(page: Page, x: Tensor, path: str, activation: type[Node], first: str) -> Tensor:
    """Writes a pooler at `path`: the first token of `x`, `[B, S, D]`, through a linear map and a squashing function;
    `first` says why that token. Returns **z**, `[B, D]`."""
    inner = Page(path, eps=page.eps)
    made = inner.tensor(r"\mathbf{x}_1", (B, D), "first")
    x = inner.line("head", "Take the first token", made, Row(x, 0), Place("", "getitem"), first)
    made = inner.tensor(r"\mathbf{y}", (B, D), "dense")
    x = inner.line("head", "Pool", made, inner.linear(x, "p", (D, D), "dense"), Place("dense"), WHY["pool"])
    made = inner.tensor(r"\mathbf{z}", (B, D), "pooled")
    x = inner.line("head", "Squash", made, activation(x), Place("activation"), WHY["tanh"])
    page.lines += inner.lines
    return x
