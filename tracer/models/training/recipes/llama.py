"""Training of the shipped Llama: on nanoGPT's characters, with AdamW alone, which is quick on any processor."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import nn

from tracer.models.llama import SPEC
from tracer.models.training.recipes import nanogpt
from tracer.spec.spec import Spec


@dataclass(frozen=True)
class Recipe(nanogpt.Recipe):
    """Settings of a run: those of nanoGPT's recipe, with rates for AdamW."""

    spec: ClassVar[Spec] = SPEC

    sizes: dict[str, Any] = field(default_factory=lambda: dict(SPEC.sizes))
    epochs: int = 6
    matrix_rate: float = 3e-3
    decay: float = 0.1
    bf16: bool = False

    def optimizers(self, net: nn.Module) -> list[torch.optim.Optimizer]:
        """Return AdamW (Loshchilov and Hutter 2019), without decay for vectors; `matrix_rate` is that of the blocks."""
        blocks, rest, vectors = [], [], []
        for name, parameter in net.named_parameters():
            (vectors if parameter.ndim < 2 else blocks if "block" in name else rest).append(parameter)
        groups = [
            {"params": blocks, "lr": self.matrix_rate, "weight_decay": self.decay},
            {"params": rest, "weight_decay": self.decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return [torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98))]

    def card(self, text) -> dict:
        """Return the card's facts on the training `text` and on the input, beside sizes, steps and figures."""
        return super().card(text) | {"options": {"tied": True}}
