"""Masked autoencoder: hidden patches of a surface predicted from the visible ones (He et al. 2022; note 001)."""

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tracer.expr.indexing import Put
from tracer.inputs.model_inputs import Inputs
from tracer.record import Segment
from tracer.spec.blocks import Block, add_blocks, patch_count
from tracer.spec.preparation import place_visible, random_photos, surface_input
from tracer.spec.results import reconstruction
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.explanations import WHY, positions
from tracer.textbook.names import Hint


class Tower(nn.Module):
    """Blocks and a last layer norm; `[B, S, D]` in and out."""

    def __init__(self, *, D: int, h: int, d_ff: int, L: int):
        super().__init__()
        self.blocks = add_blocks(self, L, lambda: Block(D=D, h=h, d_ff=d_ff))
        self.norm = nn.LayerNorm(D, eps=1e-6)

    def forward(self, x) -> torch.Tensor:
        for name in self.blocks:
            x = self.get_submodule(name)(x)  # [B, S, D]
        return self.norm(x)  # [B, S, D]


class MAE(nn.Module):
    """A masked autoencoder that predicts the pixels of all patches from some of them (He et al. 2022, section 3).

    It takes `[B, C, H, W]` float pixels, normalised as in training, and the numbers `[B, N_v]` of the visible patches,
    in raster order from 0, each at most once; it returns pixels `[B, N, P²C]`. There is no CLS token, and the decoder
    is as wide as the encoder.
    """

    def __init__(self, *, H: int, W: int, C: int, P: int, D: int, h: int, d_ff: int, L: int, L_dec: int):
        super().__init__()
        N = patch_count(H, W, P)
        self.P = P
        self.embedding = nn.Linear(P * P * C, D)
        self.position = nn.Parameter(torch.randn(N, D) * 0.02)
        self.encoder = Tower(D=D, h=h, d_ff=d_ff, L=L)
        self.bridge = nn.Linear(D, D)
        self.mask_token = nn.Parameter(torch.randn(D) * 0.02)
        self.decoder_position = nn.Parameter(torch.randn(N, D) * 0.02)
        self.decoder = Tower(D=D, h=h, d_ff=d_ff, L=L_dec)
        self.prediction = nn.Linear(D, P * P * C)

    def forward(self, image, visible) -> torch.Tensor:
        B, C, H, W, P, D = *image.shape, self.P, self.mask_token.shape[0]
        N = (H // P) * (W // P)
        x = image.view(B, C, H // P, P, W // P, P)  # [B, C, H/P, P, W/P, P]
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, P * P * C)  # [B, N, P²C]
        x = self.embedding(x)  # [B, N, D]
        x = x + self.position  # [B, N, D]
        places = visible[:, :, None].expand(-1, -1, D)  # [B, N_v, D]
        x = x.gather(1, places)  # [B, N_v, D]
        x = self.encoder(x)  # [B, N_v, D]
        x = self.bridge(x)  # [B, N_v, D]
        masked = self.mask_token.expand(B, N, D)  # [B, N, D]
        x = masked.scatter(1, places, x)  # [B, N, D]
        x = x + self.decoder_position  # [B, N, D]
        x = self.decoder(x)  # [B, N, D]
        return self.prediction(x)  # [B, N, P²C]


def visible_inputs(model: Any, image: Any, text: Any, options: dict[str, int]) -> Inputs:
    """Return the input of `surface_input`, with the patch of each encoder token, in the order of forward's
    arguments."""
    inputs = surface_input(model, image, text, options)
    order = inputs[1][0].tolist()  # the list that forward takes; the same for every input of the batch
    return replace(inputs, segments=place_visible(inputs.segments, order))


HINTS = (
    Hint(
        "patches",
        title="Cut to patches",
        why=(*WHY["cut"], Claim("The model has to predict these pixels in the end.")),
    ),
    Hint(
        "embedding",
        title="Embed",
        why=(
            *WHY["embed"][1:],
            Claim(
                "Every patch is embedded here, including those that will be hidden.",
                so.ends_in_axis("N"),
                "every patch",
            ),
        ),
    ),
    Hint(
        "position",
        letter=r"\mathbf{I}^{(0)}",
        why=(
            WHY["position"][0],
            positions("before patches are removed: afterwards, only this vector tells where a token was."),
        ),
    ),
    Hint(
        "chosen",
        id="visible",
        title="Take the visible patches",
        why=(
            Claim(
                "Only the patches on the list π go on; the others are hidden from the encoder.",
                so.fewer_tokens,
                "fewer rows",
            ),
            Claim("The model has to work out what it can't see from the rest, and so it may learn what is normal."),
        ),
    ),
    Hint("encoder.norm", title="Last norm of the encoder"),
    Hint(
        "bridge.linear",
        id="bridge",
        stage="decoder",
        title="Hand over",
        letter=r"\mathbf{Y}",
        below=r"\mathrm{dec}",
        why=(
            Claim("One trainable matrix prepares the encoder's tokens for the decoder.", so.linear, "trainable map"),
            Claim("Features that help to understand visible patches need not help to draw hidden ones."),
        ),
    ),
    Hint(
        "every",
        id="masked",
        stage="decoder",
        title="Mask tokens",
        why=(
            Claim(
                "One trainable vector stands for every patch that is hidden.",
                so.both(so.depends("p"), so.trainable),
                "trainable from nothing",
            ),
            Claim(
                "It says only that something is missing here. The encoder has less work, because it never sees these "
                "patches."
            ),
        ),
    ),
    Hint(
        "put",
        id="unshuffle",
        stage="decoder",
        title="Put back",
        letter=r"\mathbf{Y}_{\mathrm{all}}",
        why=Claim(
            "Each visible token goes back to its own place, and mask tokens fill all others. The sequence has N "
            "tokens again, in raster order.",
            so.both(so.has(Put), so.ends_in_axis("N")),
            "tokens at their places",
        ),
        note="He et al. append mask tokens and sort the list; to write the visible tokens among mask tokens gives the "
        "same.",
    ),
    Hint(
        "position2",
        id="decoder_position.sum",
        title="Add positions again",
        why=(
            Claim("All mask tokens are alike. The position tells each of them which patch it has to predict."),
            positions("without which all hidden patches would get the same prediction."),
        ),
    ),
    Hint("decoder.norm", title="Last norm of the decoder"),
    Hint(
        "logits",
        id="prediction",
        title="Predict pixels",
        letter=r"\hat{\mathbf{X}}_p",
        below=r"\mathrm{pix}",
        why=(
            Claim("Each token becomes the pixels of its patch.", so.both(so.linear, so.ends_in("C*P**2")), "tokenwise"),
            Claim(
                "A hidden patch that differs much from its prediction does not follow from the others: that "
                "difference is the "
                "anomaly."
            ),
        ),
        note="Note 001 looks for the anomaly where representations deviate; predicted and true pixels show it, too.",
    ),
)

SPEC = Spec(
    net=MAE,
    hints=HINTS,
    takes=("image",),
    samples="surfaces",
    sizes={"H": 64, "W": 64, "C": 1, "P": 8, "D": 96, "h": 4, "d_ff": 384, "L": 4, "L_dec": 2},
    derived={"N": "H*W/P**2", "d_k": "D/h"},
    names=("B", "D", "N", "N_v", "C", "P", "H", "W", "H/P", "W/P", "h", "d_k", "d_ff", "C*P**2"),
    probes=(
        {"B": 19, "H": 35, "W": 15, "C": 2, "P": 5, "D": 66, "h": 6, "d_ff": 13, "N_v": 8},
        {"B": 13, "H": 15, "W": 33, "C": 4, "P": 3, "D": 14, "h": 2, "d_ff": 29, "N_v": 17},
        {"B": 10, "H": 21, "W": 35, "C": 8, "P": 7, "D": 52, "h": 4, "d_ff": 37, "N_v": 9},
    ),
    example=lambda sizes: (*random_photos(sizes), torch.arange(sizes["N_v"]).repeat(sizes["B"], 1)),
    prepare=visible_inputs,
    result=reconstruction,
    segments=lambda sizes: (
        Segment("visible", 0, sizes["N_v"], "encoder"),
        Segment("image", 0, sizes["N"], "decoder"),
    ),
    runs=("B", "N_v"),
    settings={"seed": 0},
    parts={"encoder": "L", "decoder": "L_dec"},
)
