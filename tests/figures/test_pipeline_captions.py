"""Captions of the pipeline picture: what they say of a run is true of it."""

import pytest
import torch
from torch import nn

import tracer
from tracer.figures.pipeline import pipeline


class Block(nn.Module):
    """A pre-norm MLP beside the residual; the MLP has no matrices where it is `bare`."""

    def __init__(self, bare: bool):
        super().__init__()
        self.norm = nn.LayerNorm(8, elementwise_affine=not bare)
        self.mlp = nn.GELU() if bare else nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Stack(nn.Module):
    """Three blocks of a kind: with weights of their own, with a `tied` weight, or `bare`."""

    def __init__(self, kind: str):
        super().__init__()
        self.blocks = nn.ModuleList(Block(kind == "bare") for _ in range(3))
        for block in self.blocks if kind == "tied" else ():
            block.mlp[2].weight = self.blocks[0].mlp[2].weight
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("kind", ["own", "tied", "bare"])
def test_blocks_are_said_to_have_weights_of_their_own_where_they_have(kind):
    trace = tracer.trace(Stack(kind).eval(), torch.randn(2, 5, 8), prove=False)
    drawn = pipeline(trace)
    assert bool(trace.repeats) is (kind != "tied")
    assert ("each with its own weights" in drawn) is (kind == "own")
    assert "From the blocks to the answer" in drawn
