"""The pre-norm transformer block: attention that can be read, a two-layer MLP, two residual sums.

Attention is explicit (no fused kernel), so that scores, mask and weights are tensors of the run. `block_lines` is
the same block as equations. Sources: Vaswani et al. 2017, sections 3.2 and 3.3; pre-norm after Xiong et al. 2020,
figure 1b.
"""

from math import sqrt

import sympy
from torch import nn

from tracer.equations import GELU, Heads, Joined, LayerNorm, Softmax, Tensor, parameter, weight
from tracer.notation import symbol
from tracer.steps import Line, Place


class Attention(nn.Module):
    """Multi-head scaled dot-product self-attention (Vaswani et al. 2017, equation 1, section 3.2.2).

    Takes `[B, S, D]` and an additive mask that broadcasts to `[B, h, S, S]`; returns `[B, S, D]`.
    """

    def __init__(self, *, D: int, h: int, d_k: int | None = None, bias: bool = True):
        super().__init__()
        if d_k is None:
            if D % h:
                raise ValueError(f"D={D} is not divisible by h={h}: a head is D/h wide, so D must be a multiple of h")
            d_k = D // h
        self.h, self.d_k = h, d_k
        self.query = nn.Linear(D, h * d_k, bias=bias)
        self.key = nn.Linear(D, h * d_k, bias=bias)
        self.value = nn.Linear(D, h * d_k, bias=bias)
        self.output = nn.Linear(h * d_k, D, bias=bias)

    def forward(self, x, mask=None):
        B, S, D, h, d_k = *x.shape, self.h, self.d_k
        q = self.query(x).view(B, S, h, d_k).transpose(1, 2)  # [B, h, S, d_k]
        k = self.key(x).view(B, S, h, d_k).transpose(1, 2)  # [B, h, S, d_k]
        v = self.value(x).view(B, S, h, d_k).transpose(1, 2)  # [B, h, S, d_k]
        scores = q @ k.transpose(-2, -1) / sqrt(d_k)  # [B, h, S, S]
        if mask is not None:
            scores = scores + mask  # [B, h, S, S]
        weights = scores.softmax(dim=-1)  # [B, h, S, S]
        context = weights @ v  # [B, h, S, d_k]
        context = context.transpose(1, 2).reshape(B, S, h * d_k)  # [B, S, h·d_k]
        return self.output(context)  # [B, S, D]


class MLP(nn.Module):
    """Position-wise feed-forward network: two linear maps with GELU between (Vaswani et al. 2017, section 3.3).

    Takes and returns `[B, S, D]`; the GELU is the exact one (Hendrycks and Gimpel 2016).
    """

    def __init__(self, *, D: int, d_ff: int, bias: bool = True):
        super().__init__()
        self.expand = nn.Linear(D, d_ff, bias=bias)
        self.gelu = nn.GELU()
        self.contract = nn.Linear(d_ff, D, bias=bias)

    def forward(self, x):
        hidden = self.gelu(self.expand(x))  # [B, S, d_ff]
        return self.contract(hidden)  # [B, S, D]


class Block(nn.Module):
    """Pre-norm block: `X' = X + Attention(LN(X))`, then `X' + MLP(LN(X'))`; `[B, S, D]` in and out."""

    def __init__(self, *, D: int, h: int, d_ff: int, d_k: int | None = None, bias: bool = True, eps: float = 1e-6):
        super().__init__()
        self.norm1 = nn.LayerNorm(D, eps=eps, bias=bias)
        self.attention = Attention(D=D, h=h, d_k=d_k, bias=bias)
        self.norm2 = nn.LayerNorm(D, eps=eps, bias=bias)
        self.mlp = MLP(D=D, d_ff=d_ff, bias=bias)

    def forward(self, x, mask=None):
        x = x + self.attention(self.norm1(x), mask)  # [B, S, D]
        return x + self.mlp(self.norm2(x))  # [B, S, D]


def block_lines(layer: int, x: Tensor, *, d_k: sympy.Expr | None = None, eps: float = 1e-6) -> list[Line]:
    """The lines of block `layer` (from 1), whose input is `x`, `[B, S, D]`; the last line's tensor is its output."""
    B, D, h, d_ff = map(symbol, ("B", "D", "h", "d_ff"))
    d_k = symbol("d_k") if d_k is None else d_k
    S, block = x.shape[-2], f"block{layer}"
    tag = rf"^{{({layer})}}"

    def tensor(name: str, shape: tuple, step: str) -> Tensor:
        return Tensor(name, shape, f"{block}.{step}")

    def matrix(name: str, shape: tuple, path: str) -> Tensor:
        return weight(rf"\mathbf{{W}}_{{{name}}}{tag}", shape, f"{block}.{path}.weight")

    def vector(name: str, size, path: str) -> Tensor:
        return parameter(rf"{name}{tag}", (size,), f"{block}.{path}")

    def linear(value: Tensor, name: str, size, out, path: str):
        return value @ matrix(name, (size, out), path) + vector(rf"\mathbf{{b}}_{{{name}}}", out, f"{path}.bias")

    def norm(value: Tensor, place: int, path: str) -> LayerNorm:
        gamma = vector(rf"\gamma_{{{place}}}", D, f"{path}.weight")
        beta = vector(rf"\beta_{{{place}}}", D, f"{path}.bias")
        return LayerNorm(value, gamma, beta, eps)

    def heads(name: str, path: str):
        return Heads(linear(normed, name, D, h * d_k, path), h)

    normed = tensor(rf"\tilde{{\mathbf{{X}}}}{tag}", (B, S, D), "norm1")
    q = tensor(rf"\mathbf{{Q}}{tag}", (B, h, S, d_k), "attention.query")
    k = tensor(rf"\mathbf{{K}}{tag}", (B, h, S, d_k), "attention.key")
    v = tensor(rf"\mathbf{{V}}{tag}", (B, h, S, d_k), "attention.value")
    scores = tensor(rf"\mathbf{{S}}{tag}", (B, h, S, S), "attention.scores")
    weights = tensor(rf"\mathbf{{A}}{tag}", (B, h, S, S), "attention.weights")
    context = tensor(rf"\mathbf{{H}}{tag}", (B, S, h * d_k), "attention.context")
    output = tensor(rf"\mathbf{{O}}{tag}", (B, S, D), "attention.output")
    middle = tensor(rf"\mathbf{{X}}'{tag}", (B, S, D), "attention.residual")
    normed2 = tensor(rf"\hat{{\mathbf{{X}}}}{tag}", (B, S, D), "norm2")
    hidden = tensor(rf"\mathbf{{U}}{tag}", (B, S, d_ff), "mlp.hidden")
    active = tensor(rf"\mathbf{{G}}{tag}", (B, S, d_ff), "mlp.activation")
    mlp = tensor(rf"\mathbf{{F}}{tag}", (B, S, D), "mlp.output")
    out = tensor(rf"\mathbf{{X}}{tag}", (B, S, D), "mlp.residual")

    attention = f"{block}.attention"
    rows = [
        ("norm", "Normalise each token", normed, norm(x, 1, "norm1"), Place(f"{block}.norm1"), WHY["norm1"]),
        ("attention", "Queries", q, heads("Q", "attention.query"), Place(attention, "transpose", 0), WHY["query"]),
        ("attention", "Keys", k, heads("K", "attention.key"), Place(attention, "transpose", 1), WHY["key"]),
        ("attention", "Values", v, heads("V", "attention.value"), Place(attention, "transpose", 2), WHY["value"]),
        ("attention", "Scores", scores, q @ k.T / sympy.sqrt(d_k), Place(attention, "div"), WHY["scores"]),
        ("attention", "Attention weights", weights, Softmax(scores), Place(attention, "softmax"), WHY["weights"]),
        ("attention", "Context", context, Joined(weights @ v), Place(attention, "reshape"), WHY["context"]),
        (
            "attention",
            "Output projection",
            output,
            linear(context, "O", h * d_k, D, "attention.output"),
            Place(f"{attention}.output"),
            WHY["output"],
        ),
        ("attention", "Residual sum", middle, x + output, Place(block, "add", 0), WHY["residual"]),
        ("norm", "Normalise again", normed2, norm(middle, 2, "norm2"), Place(f"{block}.norm2"), WHY["norm2"]),
        (
            "mlp",
            "Expand",
            hidden,
            linear(normed2, "1", D, d_ff, "mlp.expand"),
            Place(f"{block}.mlp.expand"),
            WHY["hidden"],
        ),
        ("mlp", "Activate", active, GELU(hidden), Place(f"{block}.mlp.gelu"), WHY["activation"]),
        (
            "mlp",
            "Contract",
            mlp,
            linear(active, "2", d_ff, D, "mlp.contract"),
            Place(f"{block}.mlp.contract"),
            WHY["contract"],
        ),
        ("mlp", "Residual sum", out, middle + mlp, Place(block, "add", 1), WHY["residual2"]),
    ]
    return [
        Line(made.key, stage, title, made, equation, place, why, layer=layer - 1)
        for stage, title, made, equation, place, why in rows
    ]


WHY = {
    "norm1": "Each token's numbers are shifted to mean 0 and scaled to variance 1, then rescaled by learned γ and β. "
    "No token sees another here. Without it the dot products of the next steps would drift as training goes on.",
    "query": "What each token is looking for, once per head. One matrix product makes all heads; its columns are then "
    "dealt out, d_k to each head.",
    "key": "What each token offers to be found by. Queries are compared with keys, never with the tokens themselves, "
    "so a token may look for something other than what it is.",
    "value": "What each token hands over if it is attended to. It is separate from the key: being found and being "
    "useful are two different things.",
    "scores": "Every query against every key: one number for each pair of tokens, in every head. A sum of d_k products "
    "has a spread that grows as √d_k, so that is divided out; else the softmax would pick one token and learn nothing.",
    "weights": "Each row of scores becomes shares that sum to 1: how much this token takes from every token. "
    "This is the tensor that attention maps show.",
    "context": "Each token's mixture of all values, weighted by its row of shares. The heads, which worked apart, are "
    "laid side by side again.",
    "output": "Until here no head knew of the others. This product mixes what they found and brings it back to the "
    "model's width.",
    "residual": "Attention adds to the token what it found instead of replacing it. The sum also gives gradients a "
    "straight way back through all blocks.",
    "norm2": "The tokens are normalised once more before the MLP, with a γ and β of their own. The sum before this "
    "step stays as it was: only the MLP reads the normalised copy.",
    "hidden": "Each token alone is widened from D to d_ff numbers. Attention moved information between tokens; from "
    "here on each token works on what it has.",
    "activation": "GELU lets large numbers through, and sends negative ones to nearly 0. Without this bend the two "
    "products around it would be one product.",
    "contract": "Back from d_ff to D numbers, so that the result fits the residual stream. Together the two products of "
    "the MLP hold most of a block's parameters.",
    "residual2": "The MLP's result is added too. This sum is the block's output and the next block's input.",
}
