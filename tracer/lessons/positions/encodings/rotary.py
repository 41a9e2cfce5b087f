"""Rotary positions: queries and keys rotated by angles that grow with the position (Su et al. 2021)."""

from math import sqrt

import torch

from tracer.lessons.positions.encodings import PositionEncoding, PositionTable
from tracer.models.llama import rotate_half

TITLE = "Rotary"
ORDER = 4
PAPER = "Su et al. 2021, equation 34"
SAYS = "Queries and keys are rotated, one pair of numbers at a time, by angles that grow with the position."
SCORE_NOTE = (
    "Nothing is added to the tokens, so the four products do not exist: the position rotates the content. Each pair "
    "of numbers contributes one part times the cosine of the angle between the two positions, and one part times its "
    "sine."
)


class Positions(PositionEncoding):
    """`R_i q · R_j k / √d_k`, which depends on positions by `j - i` alone."""

    def __init__(self, *, T_max, D, h, R):
        super().__init__(T_max=T_max, D=D, h=h, R=R)
        exponents = torch.arange(0, D // h, 2) / (D // h)
        self.register_buffer("frequencies", 10_000.0**-exponents, persistent=False)

    def between(self, T) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(T, device=self.frequencies.device)  # [T]
        angles = torch.outer(places, self.frequencies)  # [T, d_k/2]
        angles = torch.cat([angles, angles], dim=-1)  # [T, d_k]
        return angles.cos(), angles.sin()  # [T, d_k]

    def scores(self, q, k, cosine, sine) -> torch.Tensor:
        q = q * cosine + rotate_half(q) * sine  # [B, h, T, d_k]
        k = k * cosine + rotate_half(k) * sine  # [B, h, T, d_k]
        return q @ k.transpose(-2, -1) / sqrt(q.shape[-1])  # [B, h, T, T]

    def table(self, T) -> PositionTable:
        angles = torch.outer(torch.arange(T), self.frequencies)  # [T, d_k/2]
        return PositionTable("P", torch.cat([angles.cos(), angles.sin()], dim=-1), "position", "cosines, then sines")

    def terms(self, q, k, *_) -> dict[str, torch.Tensor]:
        between = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]  # [T, T]
        angles = between[..., None] * self.frequencies  # [T, T, d_k/2]
        cosine, sine = (torch.cat([wave, wave], dim=-1) for wave in (angles.cos(), angles.sin()))  # [T, T, d_k]
        products = {
            "by the cosine of the angle between": torch.einsum("bhid,bhjd,ijd->bhij", q, k, cosine),
            "by the sine of the angle between": torch.einsum("bhid,bhjd,ijd->bhij", q, rotate_half(k), sine),
        }
        return {name: product / sqrt(q.shape[-1]) for name, product in products.items()}
