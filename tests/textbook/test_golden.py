"""Each model’s textbook, as people wrote it or read it: a diff when an equation, a shape or an op changes.

What a net computes is said as it runs; that it is what the papers say is held here.
"""

import pytest

import tracer
from tests.support.verified import assert_golden

NANOGPT = {"T_max": 11, "D": 12, "h": 3, "d_ff": 20, "L": 1}
GOLDEN = {
    "vit": ("vit", {}),
    "nanogpt-tied": ("nanogpt", NANOGPT),
    "nanogpt-separate": ("nanogpt", NANOGPT | {"tied": False}),
    "llama": ("llama", NANOGPT | {"h": 4, "h_kv": 2, "D": 16}),
    "vit_text": ("vit-text", {}),
    "vit-note": ("vit-note", {}),
    "segmenter": ("segmenter", {}),
    "saliency": ("saliency", {"H": 42, "W": 28, "D": 24, "h": 3, "d_ff": 12, "L": 1, "G": 5, "E": 2}),
    "mae": ("mae", {"D": 48, "d_ff": 96}),  # by hand, only the decoder's tensors and parameters were marked
    "clip": ("clip", {"D": 48, "d_ff": 96, "L": 2}),
    **{f"transformer-{one}": ("transformer", {"L": 1, "positions": one}) for one in ("learned", "relative")},
    "transformer-sinusoidal": ("transformer", {"L": 1}),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_steps(name, overwrite):
    model, sizes = GOLDEN[name]
    assert_golden(tracer.load(model, **sizes).trace(prove=False), name, overwrite)
