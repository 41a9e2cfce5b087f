"""An attention map and the patches that it points to: evaluation by hiding them, and a loss that makes it matter.

The measure is that of Samek et al. 2017, section III: the more answers go wrong, the more relevant were the patches.
The baseline is a map of the centre, where photos usually have their subject.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tracer.inputs import hidden_patches

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
        top = rank.topk(rank.shape[1] // hidden_patches.HIDDEN_SHARE, dim=1).indices
        hidden = torch.zeros_like(rank, dtype=torch.bool).scatter(1, top, True).view(-1, rows, columns)
        for fill, ending in (("grey", ""), ("mean", "_mean")):
            figures[f"{name}_hidden{ending}"] = hidden_patches.hide_patches(images, hidden, fill)
    return figures


def attention_mining(net: nn.Module, images: Tensor, labels: Tensor, attention: Tensor, P: int) -> Tensor:
    """Return the mean probability that `net` gives to the labels, `[B]`, where the attended patches are erased.

    `attention` is `[B, N]`; about a quarter of the patches of the images, `[B, C, H, W]`, fades to grey, by a sigmoid
    around the value at which that quarter begins. Only `attention` has a gradient: it learns to cover what the answer
    needs, and the weights don't learn to answer badly without it. Source: the attention mining loss of Li et al. 2018,
    Tell Me Where to Look: Guided Attention Inference Network, section 3.1.
    """
    count = attention.shape[1] // hidden_patches.HIDDEN_SHARE
    begin = attention.detach().topk(count + 1, dim=1).values[:, -2:].mean(dim=1, keepdim=True)  # [B, 1]
    erased = torch.sigmoid(STEEPNESS * (attention / begin - 1))  # [B, N]
    rows, columns = images.shape[2] // P, images.shape[3] // P
    erased = erased.view(-1, 1, rows, columns).repeat_interleave(P, dim=2).repeat_interleave(P, dim=3)
    weights = {name: parameter.detach() for name, parameter in net.named_parameters()}
    logits = functional_call(net, weights, (images * (1 - erased),))
    return logits.float().softmax(dim=-1).gather(1, labels[:, None]).mean()
