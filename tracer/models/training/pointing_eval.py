"""Share of words whose attention points at their object, measured on scenes with known objects."""

import numpy as np
import torch
from torch import Tensor, nn

from tracer.inputs.synthetic.scenes import COLOURS, Scenes
from tracer.inputs.synthetic.signed_distance import SHAPES
from tracer.models.training.scenes import captions, pixels
from tracer.tracing import trace

SELECTION_SCENES = 100
"""Number of scenes of each kind on which the block and head are chosen; the figure is measured on the others."""


def pointing(net: nn.Module, batches: list[Scenes]) -> dict:
    """Return how often the image attention of a colour or shape word has its maximum on the object that it names, 0 to
    1.

    The row of a word is the one that it is predicted from: that of the token before it (Xu et al. 2015, section 5.4,
    show the same); `"of the word itself"` takes its own row instead. The patch with the most attention counts as on the
    object if it overlaps the object's box. Blocks with the mean over their heads, and single heads, are chosen by the
    first `SELECTION_SCENES` scenes and measured on the rest; `"by chance"` is the share of patches that overlap the
    box. Layers and heads count from 0.
    """
    before, own, chance, near_text = [], [], [], []
    for some in batches:
        for first in range(0, len(some), 100):
            hits_part = _words(net, some[first : first + 100])
            near_text.append(torch.full((len(hits_part[2]),), first >= min(SELECTION_SCENES, len(some) - 1)))
            for column, value in zip((before, own, chance), hits_part, strict=True):
                column.append(value)
    near_text = torch.cat(near_text)
    rows = {"": torch.cat(before), " of the word itself": torch.cat(own)}
    figures = {}
    for name, hits in rows.items():  # [words, L, h + 1], the last column with the mean over heads
        chosen, in_text = (
            hits[~near_text].double().mean(dim=0),
            hits[near_text if near_text.any() else ~near_text].double().mean(dim=0),
        )
        layer = int(chosen[:, -1].argmax())
        best, head = divmod(int(chosen[:, :-1].argmax()), chosen.shape[1] - 1)
        figures[f"pointing{name}, mean over heads"] = {"layer": layer, "share": round(in_text[layer, -1].item(), 4)}
        share = round(in_text[best, head].item(), 4)
        figures[f"pointing{name}, best head"] = {"layer": best, "head": head, "share": share}
    return figures | {"pointing by chance": round(torch.cat(chance).double().mean().item(), 4)}


def _words(net: nn.Module, scenes: Scenes) -> tuple[Tensor, Tensor, Tensor]:
    """Return for every colour and shape word whether attention hits its object.

    The result is from the row before and from its own, bool `[words, L, h + 1]`; and the share of patches that would
    hit.
    """
    images, (tokens, _) = pixels(scenes), captions(scenes)
    run = trace(net, images, tokens, prove=False)
    layers = [run.attention(layer)[..., net.N :, : net.N] for layer in range(len(run.attentions))]
    maps = torch.stack([torch.cat([a, a.mean(dim=1, keepdim=True)], dim=1) for a in layers], dim=1)  # [B, L, h+1, T, N]
    best = maps.argmax(dim=-1)  # [B, L, h+1, T]
    rows, columns = (side // net.P for side in images.shape[-2:])
    top, left = (edge.flatten() * net.P for edge in np.mgrid[:rows, :columns])
    before, own, chance = [], [], []
    for index in range(len(scenes)):
        scene = scenes[index]
        for place, (word, number) in enumerate(scene.mentions):
            if word in COLOURS or word in SHAPES:
                x0, y0, x1, y1 = scene.things[number].box
                on = (left < x1) & (left + net.P > x0) & (top < y1) & (top + net.P > y0)
                on = torch.from_numpy(on)  # [N]
                before.append(on[best[index, :, :, place]])
                own.append(on[best[index, :, :, place + 1]])
                chance.append(on.double().mean())
    return torch.stack(before), torch.stack(own), torch.stack(chance)
