"""How well a map points at what it should: by boxes, and by hiding patches."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from tracer.changes import of_inputs
from tracer.inputs.synthetic import COLOURS, SHAPES, Scenes
from tracer.models.training.data import captions, pixels
from tracer.tracing import trace

# An attention map and the patches that it points to: evaluation by hiding them, and a loss that makes it matter.
#
# The measure is that of Samek et al. 2017, section III: the more answers go wrong, the more relevant were the patches.
# The baseline is a map of the centre, where photos usually have their subject.

SEED = 0
"""The seed of the patches that are hidden by chance."""
STEEPNESS = 8.0
"""How sharply `attention_mining` tells attended patches from others."""


@contextmanager
def looking(net: nn.Module) -> Iterator[list[Tensor]]:
    """Yield a list that gets, for each forward pass of a `ViT` inside, the attention of [CLS] in the last block.

    The mean over heads on each patch, `[B, N]`.
    """
    attentions: list[Tensor] = []

    def look(block: nn.Module, inputs: tuple[Tensor]) -> None:
        attention, x = block.attention, block.norm1(inputs[0])
        query, key = (
            projection(x).unflatten(-1, (attention.h, attention.d_k)).transpose(1, 2)
            for projection in (attention.query, attention.key)
        )
        weights = (query[:, :, :1] @ key.transpose(-2, -1) / attention.d_k**0.5).softmax(dim=-1)  # [B, h, 1, N+1]
        attentions.append(weights[:, :, 0, 1:].mean(dim=1))

    handle = net.get_submodule(net.blocks[-1]).register_forward_pre_hook(look)
    try:
        yield attentions
    finally:
        handle.remove()


def hide_patches(images: Tensor, attention: Tensor, P: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the images, `[B, C, H, W]`, with a quarter of their patches hidden, by the choice of these.

    "attended_hidden" hides those with the highest `attention`, `[B, N]`; "central_hidden" those nearest to the centre;
    "any_hidden" some by chance. They show the mean colour of all training images, a grey, 0; with "_mean" at the end,
    the same patches show the mean colour of their own image.
    """
    rows, columns = images.shape[2] // P, images.shape[3] // P
    y, x = ((torch.arange(count) + 0.5) / count - 0.5 for count in (rows, columns))
    ranks = {
        "attended": attention,
        "central": -torch.maximum(y.abs()[:, None], x.abs()).flatten().expand_as(attention),
        "any": torch.rand(attention.shape, generator=generator),
    }
    figures = {}
    for name, rank in ranks.items():
        top = rank.topk(rank.shape[1] // of_inputs.HIDDEN_SHARE, dim=1).indices
        hidden = torch.zeros_like(rank, dtype=torch.bool).scatter(1, top, True).view(-1, rows, columns)
        for fill, ending in (("grey", ""), ("mean", "_mean")):
            figures[f"{name}_hidden{ending}"] = of_inputs.hide_patches(images, hidden, fill)
    return figures


def attention_mining(net: nn.Module, images: Tensor, labels: Tensor, attention: Tensor, P: int) -> Tensor:
    """Return the mean probability that `net` gives to the labels, `[B]`, where the attended patches are erased.

    `attention` is `[B, N]`; about a quarter of the patches of the images, `[B, C, H, W]`, fades to grey, by a sigmoid
    around the value at which that quarter begins. Only `attention` has a gradient: it learns to cover what the answer
    needs, and the weights don't learn to answer badly without it. Source: the attention mining loss of Li et al. 2018,
    Tell Me Where to Look: Guided Attention Inference Network, section 3.1.
    """
    count = attention.shape[1] // of_inputs.HIDDEN_SHARE
    begin = attention.detach().topk(count + 1, dim=1).values[:, -2:].mean(dim=1, keepdim=True)  # [B, 1]
    erased = torch.sigmoid(STEEPNESS * (attention / begin - 1))  # [B, N]
    rows, columns = images.shape[2] // P, images.shape[3] // P
    erased = erased.view(-1, 1, rows, columns).repeat_interleave(P, dim=2).repeat_interleave(P, dim=3)
    weights = {name: parameter.detach() for name, parameter in net.named_parameters()}
    logits = functional_call(net, weights, (images * (1 - erased),))
    return logits.float().softmax(dim=-1).gather(1, labels[:, None]).mean()


# Share of words whose attention points at their object, measured on scenes with known objects.

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
    parts = []
    for some in batches:
        for first in range(0, len(some), 100):
            hits = _words(net, some[first : first + 100])
            parts.append((*hits, torch.full((len(hits[2]),), first >= min(SELECTION_SCENES, len(some) - 1))))
    before, own, chance, near_text = map(torch.cat, zip(*parts, strict=True))
    figures, measured = {}, near_text if near_text.any() else ~near_text
    for name, hits in {"": before, " of the word itself": own}.items():  # [words, L, h + 1], the mean over heads last
        chosen, in_text = (hits[words].double().mean(dim=0) for words in (~near_text, measured))
        layer = int(chosen[:, -1].argmax())
        best, head = divmod(int(chosen[:, :-1].argmax()), chosen.shape[1] - 1)
        figures[f"pointing{name}, mean over heads"] = {"layer": layer, "share": round(in_text[layer, -1].item(), 4)}
        share = round(in_text[best, head].item(), 4)
        figures[f"pointing{name}, best head"] = {"layer": best, "head": head, "share": share}
    return figures | {"pointing by chance": round(chance.double().mean().item(), 4)}


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
