"""Learned positions: a vector for each position, added to the tokens (Devlin et al. 2019, section 3)."""

import torch
from torch import nn

from tracer.lessons.positions.encodings import PositionEncoding, PositionTable
from tracer.textbook.explanations import LONGER_TABLE_CLAIMS
from tracer.textbook.names import Hint

TITLE = "Learned"
ORDER = 2
PAPER = "Devlin et al. 2019, section 3"
SAYS = "A row of a table is added to the token. Training sets its numbers; here they are random."
SCORE_NOTE = (
    "Queries and keys are computed from token plus position, so each score is a sum of four products: content or "
    "position of the query times content or position of the key."
)


class Positions(PositionEncoding):
    """`X + P`, with `P` the first T rows of a table."""

    HINTS = (
        Hint(
            "position",
            note=LONGER_TABLE_CLAIMS,
        ),
    )

    def __init__(self, *, T_max, D, h, R):
        super().__init__(T_max=T_max, D=D, h=h, R=R)
        self.rows = nn.Parameter(torch.randn(T_max, D))

    def add_to(self, x) -> torch.Tensor:
        return x + self.rows[: x.shape[1]]  # [B, T, D]

    def table(self, T) -> PositionTable:
        return PositionTable("P", self.rows[:T], "position", "dimension")
