"""Training of the shipped transformer: random strings, each to be reversed; Muon and AdamW."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from tracer.models.training.train_loop import BaseRecipe
from tracer.models.transformer import ALPHABET, SPEC
from tracer.spec.spec import Spec
from tracer.tracing import trace
from tracer.utils.errors import quote

SEEDS = {"validation": 2**31, "test": 2**31 + 1}
"""The seeds of the strings of a held-out part."""

HELD_OUT = 10
"""A string is held out where the numbers of its characters add up to a multiple of this."""


@dataclass(frozen=True)
class Strings:
    """Strings as token numbers: int64 `[M, T_max]`, padded with blanks (0); "train" has only their count."""

    count: int
    numbers: Tensor = field(default_factory=lambda: torch.empty(0, 0, dtype=torch.long))

    def __len__(self) -> int:
        return self.count


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """Settings of a run; `train("transformer", batch=64)` changes one of them.

    An epoch is `strings` strings, drawn anew each time; `tests` strings are held out. `matrix_rate` and `rate` are
    the full learning rates of the matrices in the block and of all else, `warmup` is in steps; `positions` is the
    option of the model.
    """

    spec: ClassVar[Spec] = SPEC
    synthetic: ClassVar[bool] = True
    decays_rest: ClassVar[bool] = True

    sizes: dict[str, int] = field(default_factory=lambda: dict(SPEC.sizes))
    epochs: int = 12
    batch: int = 128
    strings: int = 32_000
    tests: int = 10_000
    matrix_rate: float = 0.02
    rate: float = 3e-3
    decay: float = 0.01
    warmup: int = 100
    bf16: bool = False
    positions: str = "sinusoidal"

    def __post_init__(self):
        if self.positions not in SPEC.options["positions"]:
            known = ", ".join(map(quote, SPEC.options["positions"]))
            raise ValueError(f"positions={quote(self.positions)}: expected one of {known}")
        super().__post_init__()

    def read(self, data: Path | None, part: str) -> Strings:
        """Return the strings of a part, "train", "validation" or "test"; `data` is not read."""
        if part == "train":
            return Strings(self.strings)
        generator = torch.Generator().manual_seed(SEEDS[part])
        return Strings(self.tests, self._draw(self.tests, generator, held_out=True))

    def batch_of(self, strings: Strings, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return as many new strings as `chosen` has numbers, and the reversed ones: int64 `[B, T_max]` both."""
        numbers = self._draw(len(chosen), generator, held_out=False)
        return numbers, numbers.flip(-1)

    def loss(self, net: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return cross-entropy of the probabilities, and the share of strings that are right at every position."""
        numbers, wanted = batch
        probabilities = net(numbers)
        right = (probabilities.argmax(dim=-1) == wanted).all(dim=-1).float().mean()
        shares = probabilities.gather(-1, wanted[..., None]).float()
        return -shares.clamp(min=1e-30).log().mean(), right

    @torch.no_grad()
    def score(self, net: nn.Module, strings: Strings) -> dict:
        """Return the shares of correct strings and positions, and the mean weight on the anti-diagonal, 0 to 1."""
        right = torch.cat([net(part).argmax(dim=-1) == part.flip(-1) for part in strings.numbers.split(500)])
        exact, places = right.all(dim=-1).double().mean().item(), right.double().mean().item()
        weights = trace(net, strings.numbers[:500], prove=False).attention(0)  # [B, h, T, T]
        along = weights.flip(-1).diagonal(dim1=-2, dim2=-1).mean().item()
        figures = {"exact": exact, "places": places, "antidiagonal": along}
        return {name: round(share, 4) for name, share in figures.items()} | {"strings": len(strings)}

    def rank(self, figures: dict) -> tuple[float, ...]:
        """Return the figures by which weights are chosen, higher is better: exact strings, then the anti-diagonal."""
        return figures["exact"], figures["antidiagonal"]

    def card(self, strings: Strings) -> dict:
        """Return the card's facts on the strings and on the input, beside sizes, steps and figures."""
        V, T = self.sizes["V"], self.sizes["T_max"]
        return {
            "options": {"positions": self.positions, "mask": "bidirectional"},
            "vocabulary": ALPHABET[:V],
            "data": f"strings of 1 to {T} characters drawn at random, padded with blanks to {T}",
            "says": "Of {strings} strings that it never saw, it reverses {exact} without a mistake.",
            "licence": "weights and strings made by this repository, under its licence",
        }

    def _draw(self, count: int, generator: torch.Generator, *, held_out: bool) -> Tensor:
        """Return strings of one part: length and characters are uniform, `[count, T_max]`."""
        V, T = self.sizes["V"], self.sizes["T_max"]
        drawn_strings, have = [], 0
        while have < count:
            numbers = torch.randint(1, V, (2 * count, T), generator=generator)
            lengths = torch.randint(1, T + 1, (2 * count, 1), generator=generator)
            numbers = numbers * (torch.arange(T) < lengths)
            drawn_strings.append(numbers[(numbers.sum(dim=-1) % HELD_OUT == 0) == held_out])
            have += len(drawn_strings[-1])
        return torch.cat(drawn_strings)[:count]
