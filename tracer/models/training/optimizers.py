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
    bf16: bool
    decays_rest: ClassVar[bool] = False
    undecayed: ClassVar[Collection[str]] = ()

    def optimizers(self, net: nn.Module) -> list[torch.optim.Optimizer]:
        """Return Muon (Jordan 2024) for the matrices of the blocks, and AdamW for all else.

        Without `bf16`, the updates of Muon are computed in float32.
        """
        matrices, rest, vectors = [], [], []
        for name, parameter in net.named_parameters():
            bare = parameter.ndim < 2 or name in self.undecayed
            (vectors if bare else matrices if "block" in name else rest).append(parameter)
        groups = [
            {"params": rest, "weight_decay": self.decay if self.decays_rest else 0.0},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return [
            (torch.optim.Muon if self.bf16 else Float32Muon)(matrices, lr=self.matrix_rate, weight_decay=self.decay),
            torch.optim.AdamW(groups, lr=self.rate, betas=(0.9, 0.98)),
        ]


class Float32Muon(torch.optim.Optimizer):
    """Muon like `torch.optim.Muon`, with the updates in float32 and those of equal shapes computed together.

    PyTorch's computes in bfloat16, which takes longer than the rest of a step on a processor without instructions for
    it. Source: Jordan 2024, Muon: An optimizer for hidden layers in neural networks.
    """

    MOMENTUM = 0.95
    COEFFICIENTS = (3.4445, -4.7750, 2.0315)
    ITERATIONS = 5

    def __init__(self, params: list[nn.Parameter], *, lr: float, weight_decay: float):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Update the matrices by their gradients; there is no `closure`."""
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[nn.Parameter]] = {}
            for parameter in group["params"]:
                by_shape.setdefault(parameter.shape, []).append(parameter)
            for (rows, columns), matrices in by_shape.items():
                updates = self._orthogonalise(torch.stack([self._momentum(matrix) for matrix in matrices]))
                rate = group["lr"] * max(1, rows / columns) ** 0.5
                for matrix, update in zip(matrices, updates, strict=True):
                    matrix.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=rate)

    def _momentum(self, matrix: nn.Parameter) -> torch.Tensor:
        """Return the gradient with Nesterov momentum, the shape of `matrix`."""
        state = self.state[matrix]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(matrix)
        average = state["momentum_buffer"].lerp_(matrix.grad, 1 - self.MOMENTUM)
        return matrix.grad.lerp(average, self.MOMENTUM)

    def _orthogonalise(self, matrices: torch.Tensor) -> torch.Tensor:
        """Return `[M, rows, columns]` with singular values near 1, by five quintic Newton–Schulz iterations."""
        if matrices.shape[1] > matrices.shape[2]:
            return self._orthogonalise(matrices.mT).mT
        x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
        a, b, c = self.COEFFICIENTS
        for _ in range(self.ITERATIONS):
            gram = x @ x.mT
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x
