"""Optimizers of recipes: Muon for the matrices of the blocks, AdamW for all else."""

from collections.abc import Collection
from typing import ClassVar

import torch
from torch import nn


class MuonAndAdamW:
    """A recipe with the rates of both: `matrix_rate` and `decay` of Muon, `rate` of AdamW.

    `decays_rest`: the matrices outside blocks have the weight decay too; vectors, and the parameters named in
    `undecayed`, have none.
    """

    matrix_rate: float
    rate: float
    decay: float
    decays_rest: ClassVar[bool] = False
    undecayed: ClassVar[Collection[str]] = ()

    def optimizers(self, net: nn.Module) -> list[torch.optim.Optimizer]:
        """Return Muon (Jordan 2024) for the matrices of the blocks, and AdamW for all else."""
        matrices, rest, vectors = [], [], []
        for name, parameter in net.named_parameters():
            bare = parameter.ndim < 2 or name in self.undecayed
            (vectors if bare else matrices if "block" in name else rest).append(parameter)
        groups = [
            {"params": rest, "weight_decay": self.decay if self.decays_rest else 0.0},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return [
            torch.optim.Muon(matrices, lr=self.matrix_rate, weight_decay=self.decay),
            torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98)),
        ]
