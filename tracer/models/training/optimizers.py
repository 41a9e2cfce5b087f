"""Parameter groups of every recipe: Muon for the matrices of the blocks, AdamW for all else."""

from collections.abc import Collection

import torch
from torch import nn


def optimizers(
    net: nn.Module,
    *,
    matrix_rate: float,
    rate: float,
    decay: float,
    rest_decay: float = 0.0,
    bare: Collection[str] = (),
) -> list[torch.optim.Optimizer]:
    """Return Muon (Jordan 2024) for the matrices of the blocks, and AdamW for all else.

    The rates are `matrix_rate` with `decay`, and `rate`. `rest_decay` is the weight decay of the matrices outside of
    blocks; vectors, and the parameters named in `bare`, have none.
    """
    matrices, rest, vectors = [], [], []
    for name, parameter in net.named_parameters():
        group = vectors if parameter.ndim < 2 or name in bare else matrices if "block" in name else rest
        group.append(parameter)
    groups = [{"params": rest, "weight_decay": rest_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [
        torch.optim.Muon(matrices, lr=matrix_rate, weight_decay=decay),
        torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98)),
    ]
