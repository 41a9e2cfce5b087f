"""Vision Transformer: a photo cut into patches, an encoder, a class (Dosovitskiy et al. 2021)."""

import torch
from torch import nn

from tracer.derive.hints import Hint
from tracer.derive.steps import Place
from tracer.derive.whys import READ
from tracer.equations import Concat, Patches, Tensor
from tracer.inputs.tensors import photo_input
from tracer.models.shared.blocks import Block
from tracer.models.shared.model import Spec
from tracer.models.shared.results import class_probabilities
from tracer.models.shared.textbook import Page, block_lines
from tracer.record import Segment
from tracer.symbols.notation import symbol


class ViT(nn.Module):
    """Classifies images with a CLS token (Dosovitskiy et al. 2021, equations 1 to 4).

    Takes `[B, C, H, W]` float pixels, normalised as in training; returns logits `[B, K]`.
    """

    def __init__(self, *, H: int, W: int, C: int, P: int, D: int, h: int, d_ff: int, L: int, K: int):
        super().__init__()
        if H % P or W % P:
            raise ValueError(f"H={H}, W={W} don't fit P={P}: patches don't overlap, so H and W must be multiples of P")
        N = (H // P) * (W // P)
        self.P = P
        self.embedding = nn.Linear(P * P * C, D)
        self.cls = nn.Parameter(torch.zeros(D))
        self.position = nn.Parameter(torch.randn(N + 1, D) * 0.02)
        self.blocks = [f"block{layer}" for layer in range(1, L + 1)]
        for name in self.blocks:
            self.add_module(name, Block(D=D, h=h, d_ff=d_ff))
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.head = nn.Linear(D, K)

    def forward(self, image):
        B, C, H, W, P, D = *image.shape, self.P, self.cls.shape[0]
        x = image.view(B, C, H // P, P, W // P, P)  # [B, C, H/P, P, W/P, P]
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, P * P * C)  # [B, N, P²C]
        x = self.embedding(x)  # [B, N, D]
        x = torch.cat([self.cls.expand(B, 1, D), x], dim=1)  # [B, N+1, D]
        x = x + self.position  # [B, N+1, D]
        for name in self.blocks:
            x = self.get_submodule(name)(x)  # [B, N+1, D]
        x = self.norm(x)  # [B, N+1, D]
        return self.head(x[:, 0])  # [B, K]


def encoder(page: Page, count: int) -> Tensor:
    """Writes all from the photo to the last norm, with `count` blocks; returns **X**_f, `[B, N+1, D]`."""
    x = sequence(page)
    for layer in range(1, count + 1):
        page.lines += block_lines(layer, x)
        x = page.lines[-1].tensor
    made = page.tensor(r"\mathbf{X}_f", x.shape, "norm")
    return page.line("norm", "Last norm", made, page.norm(x, "f", "norm"), Place("norm"), WHY["norm"])


def sequence(page: Page) -> Tensor:
    """Writes all from the photo to the first block; returns **X**⁽⁰⁾, `[B, N+1, D]`."""
    B, H, W, C, P, N, D = map(symbol, "BHWCPND")
    image = Tensor(r"\mathbf{X}_{\mathrm{img}}", (B, C, H, W), "input image")
    x = page.tensor(r"\mathbf{X}_p", (B, N, P**2 * C), "patches")
    page.line("patches", "Cut to patches", x, Patches(image, P), Place("", "reshape"), WHY["patches"])
    made = page.tensor(r"\mathbf{I}", (B, N, D), "embedding")
    equation = page.linear(x, "E", (P**2 * C, D), "embedding")
    x = page.line("embedding", "Embed", made, equation, Place("embedding"), WHY["embedding"])
    made = page.tensor(r"\mathbf{X}_{\mathrm{seq}}", (B, N + 1, D), "sequence")
    equation = Concat(page.parameter(r"\mathbf{x}_{\mathrm{cls}}", (D,), "cls"), x)
    x = page.line("embedding", "CLS in front", made, equation, Place("", "cat"), WHY["cls"])
    made = page.tensor(r"\mathbf{X}^{(0)}", (B, N + 1, D), "position")
    equation = x + page.parameter(r"\mathbf{P}", (N + 1, D), "position")
    return page.line("position", "Add positions", made, equation, Place("", "add"), WHY["position"])


WHY = {
    "patches": "A transformer takes a sequence, so the photo becomes one: squares of P × P pixels, read row by row, "
    "each flattened pixel by pixel (hwc: row, column, channel). Pixels were normalised before, so that 0 is a usual "
    "brightness; here they only move.",
    "embedding": "Pixel values side by side say little. A learned matrix, the same for every patch, turns each patch "
    "into a token of D numbers in a space where similar content can lie close together.",
    "cls": "One more token, a vector of parameters that is the same for every photo, is put in front. It holds no "
    "pixels; all that it gets to know of them comes through attention.",
    "position": "Without this, shuffled patches would give the same class. A learned vector for each place is added, "
    "so that every token carries what it shows and where it lies.",
    **READ,
}

HINTS = (
    Hint("patches", title="Cut to patches", why=WHY["patches"]),
    Hint("embedding", title="Embed", why=WHY["embedding"]),
    Hint("sequence", title="CLS in front", why=WHY["cls"]),
    Hint("position", why=WHY["position"]),
    Hint("cls", why=WHY["take"]),
    Hint("logits", title="Classify", below=r"\mathrm{cls}", why=WHY["head"]),
)

SPEC = Spec(
    net=ViT,
    hints=HINTS,
    takes=("image",),
    samples="photos",
    sizes={"H": 32, "W": 32, "C": 3, "P": 4, "D": 128, "h": 4, "d_ff": 512, "L": 6, "K": 10},
    derived={"N": "H*W/P**2", "d_k": "D/h"},
    names=("B", "D", "N", "N + 1", "K", "C", "P", "H", "W", "H/P", "W/P", "h", "d_k", "d_ff", "C*P**2"),
    probes=(
        {"B": 19, "H": 35, "W": 15, "C": 2, "P": 5, "D": 66, "h": 6, "d_ff": 13, "K": 17},
        {"B": 13, "H": 15, "W": 33, "C": 4, "P": 3, "D": 14, "h": 2, "d_ff": 29, "K": 23},
        {"B": 10, "H": 21, "W": 35, "C": 6, "P": 7, "D": 52, "h": 4, "d_ff": 37, "K": 11},
    ),
    example=lambda sizes: (torch.randn(sizes["B"], sizes["C"], sizes["H"], sizes["W"]),),
    prepare=photo_input,
    result=class_probabilities,
    segments=lambda sizes: (Segment("CLS", 0, 1), Segment("image", 1, sizes["N"] + 1)),
)
