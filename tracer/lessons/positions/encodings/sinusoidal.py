"""Sinusoidal positions: sines and cosines of each position, added to the tokens (Vaswani et al. 2017, section 3.5)."""

import torch

from tracer.lessons.positions.encodings import PositionEncoding, PositionTable
from tracer.models.transformer import sinusoids
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.names import Hint

TITLE = "Sinusoidal"
ORDER = 1
PAPER = "Vaswani et al. 2017, section 3.5"
SAYS = "Waves over the position, from fast to slow, are added to each token. None of this is learned."
SCORE_NOTE = (
    "Queries and keys are computed from token plus position, so each score is a sum of four products: content or "
    "position of the query times content or position of the key."
)


class Positions(PositionEncoding):
    """`X + P`, with `P` of alternating sines and cosines."""

    HINTS = (
        Hint(
            "positions",
            title="Sines and cosines",
            letter=r"\mathbf{P}",
            why=(
                Claim(
                    "Every position gets its own pattern: waves from fast to slow, like the hands of many clocks.",
                    so.equation_is("Sinusoids"),
                ),
            ),
        ),
        Hint(
            "position",
            why=(
                Claim(
                    "The dot products of attention compare what tokens contain, not where they are. The waves of each "
                    "position are added, so that they compare positions too.",
                    so.equation_is("Plus"),
                ),
            ),
            note="The 2017 paper multiplies embeddings by √D before this sum; note 004 does not, and neither does "
            "this run.",
        ),
    )

    def add_to(self, x) -> torch.Tensor:
        return x + sinusoids(*x.shape[1:]).to(x)  # [B, T, D]

    def table(self, T) -> PositionTable:
        return PositionTable("P", sinusoids(T, self.D), "position", "dimension")

    def __init__(self, *, T_max, D, h, R):
        super().__init__(T_max=T_max, D=D, h=h, R=R)
        self.D = D
