"""Training of the shipped nanoGPT: characters of Shakespeare, Muon for the matrices and AdamW for the rest."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tracer.inputs.model_inputs import Characters
from tracer.models.nanogpt import SHAKESPEARE, SPEC
from tracer.models.training.train_loop import BaseRecipe
from tracer.spec.spec import Spec
from tracer.utils.errors import quote

FILE = "tinyshakespeare.txt"
TRAINING_SHARE = 0.9
"""Share of the text, from its beginning, that is trained on; the rest validates."""


@dataclass(frozen=True)
class Text:
    """A part of the text as token numbers, int64 `[M]`, cut to windows of `T` tokens, each with the token after."""

    numbers: Tensor
    T: int

    def __len__(self) -> int:
        return (len(self.numbers) - 1) // self.T

    def windows(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens from each of `starts`, `[B]`, and those one position later: `[B, T]` both."""
        places = starts[:, None] + torch.arange(self.T)
        return self.numbers[places], self.numbers[places + 1]


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """Settings of a run; `train("nanogpt", batch=64)` changes one of them.

    `matrix_rate` and `rate` are the full learning rates of the matrices in the blocks and of all else, `decay` the
    weight decay, `warmup` is in steps.
    """

    spec: ClassVar[Spec] = SPEC
    decays_rest: ClassVar[bool] = True

    sizes: dict[str, int] = field(default_factory=lambda: dict(SPEC.sizes))
    epochs: int = 14
    batch: int = 32
    matrix_rate: float = 0.02
    rate: float = 3e-3
    decay: float = 0.05
    warmup: int = 100
    bf16: bool = True

    def read(self, data: Path, part: str) -> Text:
        """Return the first nine tenths of the text, "train", or the rest.

        The score on the rest is the validation loss, by which weights are chosen too, as in nanoGPT. Raise
        FileNotFoundError if there is no such text, ValueError if it holds other characters or is too short.
        """
        file = data / FILE if data.is_dir() else data
        if not file.is_file():
            raise FileNotFoundError(f"no text in {quote(data)}: expected {FILE}")
        try:
            numbers = Characters(SHAKESPEARE[: self.sizes["V"]]).encode(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"can't read the text {quote(file)}: {error}") from error
        cut = int(TRAINING_SHARE * len(numbers))
        chosen = Text(torch.tensor(numbers[:cut] if part == "train" else numbers[cut:]), self.sizes["T_max"])
        if not len(chosen):
            raise ValueError(
                f"{quote(file)} has {len(numbers)} characters: expected at least {20 * self.sizes['T_max']}"
            )
        return chosen

    def initialise(self, net: nn.Module) -> None:
        """Start outputs of blocks at zero."""
        for block in map(net.get_submodule, net.blocks):
            for linear in (block.attention.output, block.mlp.contract):
                nn.init.zeros_(linear.weight)

    def batch_of(self, text: Text, chosen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the windows `chosen`, `[B]`, each shifted by up to T - 1 tokens, and next tokens: `[B, T]` both."""
        starts = chosen * text.T + torch.randint(text.T, chosen.shape, generator=generator)
        return text.windows(starts.clamp(max=len(text.numbers) - text.T - 1))

    def loss(self, net: nn.Module, batch: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return cross-entropy in nats per character, and the share of correct characters."""
        numbers, wanted = batch
        logits = net(numbers)
        right = (logits.argmax(dim=-1) == wanted).float().mean()
        return F.cross_entropy(logits.float().flatten(0, 1), wanted.flatten()), right

    @torch.inference_mode()
    def score(self, net: nn.Module, text: Text) -> dict:
        """Return the loss in nats per character over all of `text`, in windows of T, in float32 on the CPU."""
        total = 0.0
        for starts in (torch.arange(len(text)) * text.T).split(50):
            numbers, wanted = text.windows(starts)
            total += F.cross_entropy(net(numbers).flatten(0, 1), wanted.flatten(), reduction="sum").item()
        count = len(text) * text.T
        return {"loss": round(total / count, 4), "characters": count}

    def rank(self, figures: dict) -> float:
        """Return the figure by which weights are chosen, higher is better."""
        return -figures["loss"]

    def card(self, text: Text) -> dict:
        """Return the card's facts on the training `text` and on the input, beside sizes, steps and figures."""
        return {
            "options": {"bias": True, "tied": True, "gelu": "exact"},
            "vocabulary": SHAKESPEARE[: self.sizes["V"]],
            "unit": f"loss in nats per character, on the last tenth of the text in windows of {text.T}",
            "data": f"tiny Shakespeare (Karpathy 2015), its first {len(text.numbers):,} characters",
            "says": "On {characters} characters that it was not trained on, its loss is {loss} nats per character.",
            "licence": "weights made by this repository, under its licence; the plays are in the public domain",
        }
