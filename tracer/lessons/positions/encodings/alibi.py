"""ALiBi: a penalty on scores that grows with the distance, steeper in some heads (Press et al. 2022)."""

from math import sqrt

import torch

from tracer.lessons.positions.encodings import PositionEncoding
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.names import Hint

TITLE = "ALiBi"
ORDER = 5
PAPER = "Press et al. 2022, section 3"
SAYS = "A penalty grows with the distance, by a slope that differs from head to head. None of it is learned."
SCORE_NOTE = (
    "Nothing is added to the tokens. Each score is the match of query and key, minus a penalty that does not depend "
    "on content."
)


class Positions(PositionEncoding):
    """`q·k/√d_k - m |i - j|`, with a slope m of its own for each head: `2^(-8/h)`, and its powers."""

    HINTS = (
        Hint(
            "mask",
            id="penalty",
            stage="position",
            title="Penalty of the distance",
            letter=r"\mathbf{B}",
            why=(
                Claim(
                    "Each head has a slope m. The further apart two tokens are, the more is subtracted from their "
                    "score.",
                    so.equation_is("Times"),
                ),
            ),
            note="In the paper, the mask is causal, so no key comes after its query. Without a mask, the distance "
            "counts in both directions here.",
        ),
        Hint(
            "*.scores",
            why=(
                Claim(
                    "Every query meets every key, over √d_k as usual. The penalty is subtracted after that: the "
                    "further away a token is, the less weight it gets, however well it fits.",
                    so.equation_is("Plus", "Minus"),
                ),
            ),
        ),
        Hint("parameter *.slopes", letter=r"\mathbf{m}"),
    )

    def __init__(self, *, T_max, D, h, R):
        super().__init__(T_max=T_max, D=D, h=h, R=R)
        exponents = 8 * torch.arange(1, h + 1) / h
        self.register_buffer("slopes", 2.0**-exponents, persistent=False)

    def between(self, T) -> tuple[torch.Tensor]:
        """Return the penalty of each pair of positions: `[h, T, T]`."""
        place = torch.arange(T, device=self.slopes.device)  # [T]
        distances = (place - place[:, None]).abs()  # [T, T]
        return (self.slopes[:, None, None] * distances,)  # [h, T, T]

    def scores(self, q, k, penalty) -> torch.Tensor:
        return q @ k.transpose(-2, -1) / sqrt(q.shape[-1]) - penalty  # [B, h, T, T]

    def terms(self, q, k, penalty) -> dict[str, torch.Tensor]:
        products = q @ k.transpose(-2, -1) / sqrt(q.shape[-1])
        return {"content–content": products, "penalty of the distance": -penalty.expand_as(products)}
