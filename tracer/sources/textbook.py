"""The textbook of a transformer block as libraries write it: packed or separate projections, fused attention, norms
before or after.

A family says where its code makes each tensor, as a `Table`; the equations are the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy

from tracer.equations import (
    GELU,
    Columns,
    Concat,
    Heads,
    Joined,
    Node,
    Part,
    Softmax,
    Split,
    Squeezed,
    Swapped,
    Tensor,
    Unfold,
    Unrolled,
)
from tracer.notation import symbol
from tracer.steps import Place
from tracer.textbook import WHY, Page

D, h, d_k, d_ff = map(symbol, ("D", "h", "d_k", "d_ff"))
PACK = r"\mathbf{QKV}"
FUSED = "_scaled_dot_product_flash_attention_for_cpu"


@dataclass(frozen=True)
class Table:
    """Where a family's block makes the tensors of the textbook, and where it keeps their parameters.

    `places` maps a step to its `Place` and `parameters` a linear map or norm to the path of its module, or to those
    of its weight and bias, all relative to the block. Steps: norm1, packed or query, key, value, context, output,
    residual1, norm2, hidden, activation, contract, residual2; a family without a fused kernel has scores and weights
    too. `post` says that the norms come after the sums (Vaswani et al. 2017), `sequence_first` that the packed product
    is split and laid out as `[3, S, B, D]`, `transposed` that weights are `[out, in]` as in `nn.Linear`, and not
    `[in, out]`.
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
        return self.page.line(stage, title, made, equation, place, why or WHY[step], note)

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
            equation = Split(self.linear(Swapped(x), "QKV", (D, 3 * D), "packed"), 3)
            packed = self.write("packed", "attention", "Packed product", PACK, (3, S, batch, D), equation, PACKED)
            parts = [Swapped(Part(packed, i)) for i in range(3)]
        elif "packed" in self.table.parameters:
            equation = self.linear(x, "QKV", (D, 3 * D), "packed")
            packed = self.write("packed", "attention", "Packed product", PACK, (batch, S, 3 * D), equation, PACKED)
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
                WHY[step],
            )
            for (step, title), part in zip(titles.items(), parts, strict=True)
        )

    def attention(self, x: Tensor, mask: Node | None = None) -> Tensor:
        """Multi-head attention of `x`, `[B, S, D]`, with an additive mask; returns **O**, `[B, S, D]`."""
        batch, S = x.shape[:2]
        q, k, v = self.projections(x)
        scores = q @ k.T / sympy.sqrt(d_k)
        scores, why = (scores, WHY["scores"]) if mask is None else (scores + mask, WHY["masked scores"])
        scores = self.write("scores", "attention", "Scores", r"\mathbf{S}", (batch, h, S, S), scores, why)
        weights = Softmax(scores)
        weights = self.write("weights", "attention", "Attention weights", r"\mathbf{A}", (batch, h, S, S), weights)
        context = self.write("context", "attention", "Context", r"\mathbf{C}", (batch, h, S, d_k), weights @ v, CONTEXT)
        equation = self.linear(Joined(context), "O", (h * d_k, D), "output")
        return self.write("output", "attention", "Output projection", r"\mathbf{O}", (batch, S, D), equation, OUTPUT)

    def mlp(self, x: Tensor) -> Tensor:
        """The two-layer MLP of `x`, `[B, S, D]`; returns **F**, `[B, S, D]`."""
        batch, S = x.shape[:2]
        equation = self.linear(x, "1", (D, d_ff), "hidden")
        hidden = self.write("hidden", "mlp", "Expand", r"\mathbf{U}", (batch, S, d_ff), equation)
        equation, why = self.table.activation(hidden), WHY[self.table.activation.__name__]
        active = self.write("activation", "mlp", "Activate", r"\mathbf{G}", (batch, S, d_ff), equation, why)
        equation = self.linear(active, "2", (d_ff, D), "contract")
        return self.write("contract", "mlp", "Contract", r"\mathbf{F}", (batch, S, D), equation)

    def block(self, x: Tensor, mask: Node | None = None) -> Tensor:
        """The whole block; returns **X**, `[B, S, D]`."""
        shape = x.shape
        if self.table.post:
            middle = x + self.attention(x, mask)
            middle = self.write("residual1", "attention", "Residual sum", r"\mathbf{Y}", shape, middle, WHY["residual"])
            middle = self.norm(middle, "1", "norm1")
            middle = self.write("norm1", "norm", "Normalise each token", r"\mathbf{X}'", shape, middle, POST)
            out = middle + self.mlp(middle)
            out = self.write("residual2", "mlp", "Residual sum", r"\mathbf{Y}'", shape, out, SUM)
            return self.write(
                "norm2", "norm", "Normalise again", r"\mathbf{X}", shape, self.norm(out, "2", "norm2"), POST2
            )
        normed = self.norm(x, "1", "norm1")
        normed = self.write("norm1", "norm", "Normalise each token", r"\tilde{\mathbf{X}}", shape, normed)
        middle = x + self.attention(normed, mask)
        middle = self.write("residual1", "attention", "Residual sum", r"\mathbf{X}'", shape, middle, WHY["residual"])
        normed = self.norm(middle, "2", "norm2")
        normed = self.write("norm2", "norm", "Normalise again", r"\hat{\mathbf{X}}", shape, normed)
        return self.write("residual2", "mlp", "Residual sum", r"\mathbf{X}", shape, middle + self.mlp(normed))


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
    x = page.line("embedding", "Embed the patches", made, equation, places["embedding"], CONVOLVED)
    made = page.tensor(r"\mathbf{X}_{\mathrm{seq}}", (B, N + 1, D), "sequence")
    token = Squeezed(page.parameter(r"\mathbf{x}_{\mathrm{cls}}", (1, 1, D), cls), 2)
    x = page.line("embedding", "CLS in front", made, Concat(token, x), places["sequence"], CLS)
    made = page.tensor(r"\mathbf{X}^{(0)}", (B, N + 1, D), "position")
    equation = x + Squeezed(page.parameter(r"\mathbf{P}", (1, N + 1, D), position), 1)
    return page.line("position", "Add positions", made, equation, places["position"], POSITION)


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

PACKED = (
    "Queries, keys and values in one matrix product instead of three: the three matrices lie side by side in one. "
    "It is the same arithmetic, and one large product keeps the machine busier than three small ones."
)
CONTEXT = (
    "Each token's mixture of all values, weighted by its row of shares, head by head. Where one kernel does all of "
    "attention, this is the first tensor that it writes to memory."
)
OUTPUT = (
    "The heads, which worked apart, are laid side by side, and one product mixes what they found. It brings the result "
    "back to the model's width."
)
POST = (
    "The sum is normalised after the residual, as in the first transformer: mean 0 and variance 1 for each token, then "
    "γ and β. The residual stream itself is normalised, so no last norm is needed."
)
POST2 = (
    "The second sum is normalised too, with a γ and β of its own. This is the block's output, and the next one's input."
)
SUM = "The MLP adds to the token what it computed instead of replacing it. The norm comes after this sum."
CONVOLVED = (
    "A convolution whose stride is its kernel's side looks at each patch once: it is the unfold operator and one "
    "matrix product, which is how the equation says it. Each patch becomes a token of D numbers."
)
CLS = (
    "One more token, learned and the same for every photo, is put in front. It holds no pixels; through attention it "
    "collects from all patches what the classification needs."
)
POSITION = (
    "Attention does not know which token is where. A learned vector for each place is added, so that every token "
    "carries what it shows and where it lies."
)

LANGUAGE = {
    "lookup": "Each token is a number, and the number says which row of the table it gets. The rows are learned: tokens "
    "that are used alike come to lie near each other.",
    "position": "Attention does not know the order of the tokens. A learned vector for each place is added, so that every "
    "token carries what it is and where it stands.",
    "places": "The places are numbered from 0. The numbers are the same for every text; only a text that goes on from a "
    "cache would start later.",
    "one": "Some programs lay several short texts behind each other in one row, and their place numbers then start anew "
    "inside it. The code asks whether that is so here; it is not, so the plain causal mask is right.",
    "type": "A learned vector says which of two sentences a token belongs to. With one sentence it is the same for all.",
    "mask": "0 where a token may look, the lowest number there is where it may not: at itself and before, never ahead. "
    "It is made once, and all blocks add it to their scores.",
    "first norm": "The sum of the three tables is normalised before the first block: mean 0 and variance 1 for each token, "
    "then γ and β.",
    "norm": "The residual stream grew with every sum. One last layer norm brings all tokens to one scale before "
    "they are read.",
    "tied": "Every token of the vocabulary gets a score: how well its row of the embedding table fits what the model "
    "expects next. The same table is read at both ends, which saves its parameters once.",
    "first": "The first token stands for the whole text. Through attention it has seen all others.",
    "pool": "One more matrix product turns the first token into a vector for tasks on whole texts. It was trained "
    "to tell whether one sentence follows another.",
    "tanh": "Each number is squashed to between -1 and 1, so that no single one outweighs the rest. The result is the "
    "model's summary of the text.",
}
