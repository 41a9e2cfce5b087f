"""Where words point: a net whose attention is known, and a scene whose object is."""

import torch

from tracer.inputs import scenes
from tracer.training.pointing import pointing


class Pointing(torch.nn.Module):
    """Stands in for a net whose last word row of attention is known: all on one patch."""

    N, P = 16, 16

    def __init__(self, patch: int):
        super().__init__()
        self.patch = patch

    def forward(self, image, tokens):
        B, S = len(image), 16 + tokens.shape[1]
        q = torch.ones(B, 1, S, 1)
        k = torch.zeros(B, 1, S, 1)
        k[:, :, self.patch] = 9
        return (q @ k.transpose(-2, -1)).softmax(-1) @ k


def test_pointing_is_counted_by_hand():
    """One large circle in the middle of the picture overlaps the four patches in the middle, not the corner."""
    middle = scenes.Scene((scenes.Thing("circle", "red", "large", 32.0, 32.0, 10.0),))
    for patch, share in ((5, 1.0), (0, 0.0)):
        figures = pointing(Pointing(patch), [scenes.gather([middle] * 2)])
        assert figures["pointing, mean over heads"] == {"layer": 0, "share": share}
        assert figures["pointing of the word itself, best head"] == {"layer": 0, "head": 0, "share": share}
        assert figures["pointing by chance"] == 0.25
