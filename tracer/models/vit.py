"""Vision Transformer: a photo cut into patches, an encoder, a class (Dosovitskiy et al. 2021)."""

import torch
from torch import nn

from tracer.blocks import Block


class ViT(nn.Module):
    """Classifies images with a CLS token (Dosovitskiy et al. 2021, equations 1 to 4).

    Takes `[B, C, H, W]` float pixels, normalised as in training; returns logits `[B, K]`.
    """

    def __init__(self, *, H: int, W: int, C: int, P: int, D: int, h: int, d_ff: int, L: int, K: int):
        super().__init__()
        if H % P or W % P:
            raise ValueError(f"H={H}, W={W} don't fit P={P}: patches don't overlap, so H and W must be multiples of P")
        N = (H // P) * (W // P)
        self.P = P
        self.embedding = nn.Linear(P * P * C, D)
        self.cls = nn.Parameter(torch.zeros(D))
        self.position = nn.Parameter(torch.randn(N + 1, D) * 0.02)
        self.blocks = [f"block{layer}" for layer in range(1, L + 1)]
        for name in self.blocks:
            self.add_module(name, Block(D=D, h=h, d_ff=d_ff))
        self.norm = nn.LayerNorm(D, eps=1e-6)
        self.head = nn.Linear(D, K)

    def forward(self, image):
        B, C, H, W, P, D = *image.shape, self.P, self.cls.shape[0]
        x = image.view(B, C, H // P, P, W // P, P)  # [B, C, H/P, P, W/P, P]
        x = x.permute(0, 2, 4, 3, 5, 1).reshape(B, -1, P * P * C)  # [B, N, P²C]
        x = self.embedding(x)  # [B, N, D]
        x = torch.cat([self.cls.expand(B, 1, D), x], dim=1)  # [B, N+1, D]
        x = x + self.position  # [B, N+1, D]
        for name in self.blocks:
            x = self.get_submodule(name)(x)  # [B, N+1, D]
        x = self.norm(x)  # [B, N+1, D]
        return self.head(x[:, 0])  # [B, K]
