"""Contrasts to attention and layer norm in the notes: a convolution's receptive field, and batch norm."""

from __future__ import annotations

import copy
from math import ceil
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from tracer.attention import parts, places, weights
from tracer.figures.predictions.class_bars import percent
from tracer.inputs.samples import samples
from tracer.lessons.notes.claims.measurement import Measurement, close, off, verdict_of
from tracer.models.shared.spec import Model
from tracer.record import Trace
from tracer.utils.thread_local_rng import seeded_draws

KERNEL = 3
"""Side of the convolution's kernel."""
CHANNELS = 8
"""Channels of its layers."""


class ReceptiveFields(NamedTuple):
    """Receptive field of a grid's middle after each layer of a convolution, and in one layer of attention.

    The former is `[layers, rows, columns]`, 0 or 1; the latter is the row of weights of the middle token after its
    first layer.
    """

    convolution: torch.Tensor
    attention: torch.Tensor


@torch.enable_grad()
def fields(trace: Trace) -> ReceptiveFields:
    """Return both fields on the grid of a run's picture, with as many layers of the convolution as cover all of it.

    A position is in the field if the gradient of the middle with respect to it is not 0: the layers have random weights
    and no activation, so that only the path counts. Raise ValueError for a run without a picture.
    """
    picture = trace.picture
    whole = None if picture is None else picture.rows * picture.columns
    part = next((segment for segment in parts(trace) if len(places(trace, segment)) == whole), None)
    if picture is None or part is None:
        raise ValueError(f"{trace.model} attends to no whole grid of patches")
    rows, columns, middle = picture.rows, picture.columns, (picture.rows // 2, picture.columns // 2)
    depth = ceil(max(middle) / (KERNEL // 2))
    with seeded_draws(0):
        layers = [nn.Conv2d(CHANNELS, CHANNELS, KERNEL, padding=KERNEL // 2) for _ in range(depth)]
        x = torch.randn(1, CHANNELS, rows, columns, requires_grad=True)
    fields, y = [], x
    for layer in layers:
        y = layer(y)
        (gradient,) = torch.autograd.grad(y[0, :, middle[0], middle[1]].sum(), x, retain_graph=True)
        fields.append((gradient[0].abs().sum(0) > 0).int())
    lie = {patch: token for token, patch in places(trace, part).items()}
    row = weights(trace, 0, query=lie[middle[0] * columns + middle[1]], part=part)[0].mean(0)
    return ReceptiveFields(
        torch.stack(fields), row[[lie[patch] for patch in range(rows * columns)]].view(rows, columns)
    )


KERNELS = (3, 5, 7)
"""Sides of kernels whose fields are grown."""


@torch.enable_grad()
def layers_needed(rows: int, columns: int, kernel: int) -> int:
    """Return the number of convolutions until the middle of a grid depends on all of it, counted by gradients."""
    middle = rows // 2, columns // 2
    with seeded_draws(0):
        layer = nn.Conv2d(1, 1, kernel, padding=kernel // 2).double()
        x = torch.randn(1, 1, rows, columns, dtype=torch.float64, requires_grad=True)
    y = x
    for count in range(1, rows + columns + 1):
        y = layer(y)
        (gradient,) = torch.autograd.grad(y[0, 0, middle[0], middle[1]], x, retain_graph=True)
        if bool(gradient.all()):
            return count
    raise ValueError(f"{rows + columns} layers of {kernel} × {kernel} don't reach all of {rows} × {columns}")


def receptive(model: Model, trace: Trace) -> Measurement:
    """Measure the layers of a convolution until it covers the whole grid, and the reach of one layer of attention."""
    receptive_fields = fields(trace)
    counts = [int(field.sum()) for field in receptive_fields.convolution]
    rows, columns = receptive_fields.attention.shape
    reach = max(rows // 2, columns // 2)
    needed = {kernel: layers_needed(rows, columns, kernel) for kernel in KERNELS}
    field_size = int((receptive_fields.attention > 0).sum())
    so = all(count == ceil(reach / (kernel // 2)) for kernel, count in needed.items())
    return Measurement(
        f"a grid of {rows} × {columns}, what its middle depends on; attention of block 1, mean over heads",
        f"after 1, 2, … {len(counts)} layers of {KERNEL} × {KERNEL} the middle depends on "
        f"{', '.join(map(str, counts))} of {receptive_fields.attention.numel()} places; to cover all of it takes "
        + ", ".join(f"{count} layers of {kernel} × {kernel}" for kernel, count in needed.items()),
        f"One layer of attention gives weight to {field_size} of {receptive_fields.attention.numel()}, each at least "
        f"{percent(float(receptive_fields.attention.min()))}",
        verdict_of(so and field_size == receptive_fields.attention.numel() > counts[0]),
        "notes",
        (("note", "contrasts"),),
    )


class NormComparison(NamedTuple):
    """One picture's tokens, `[S, D]`, through layer norm and through batch norm, alone and beside a second picture.

    The changes by the second picture in the batch are shares of the largest value.
    """

    alone: tuple[torch.Tensor, torch.Tensor]
    together: tuple[torch.Tensor, torch.Tensor]
    layer: float
    batch: float


@torch.no_grad()
def beside(model: Model, trace: Trace) -> NormComparison:
    """Return layer norm and batch norm in training, without γ and β, on the tokens of the first block's input.

    Raise ValueError for a model without a second sample.
    """
    pictures = list(samples(model.spec.samples).values())[:2]
    if len(pictures) < 2 or not trace.attentions:
        raise ValueError(f"{model.name} takes no batch of two pictures")
    first, second = (_entering(model, trace, picture()) for picture in pictures)
    both = torch.cat([first, second])

    def batch(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x.mT, None, None, training=True).mT

    def layer(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:])

    alone, together = (layer(first)[0], batch(first)[0]), (layer(both)[0], batch(both)[0])
    return NormComparison(alone, together, off(together[0], alone[0]), off(together[1], alone[1]))


def _entering(model: Model, trace: Trace, picture) -> torch.Tensor:
    """Return the input of the first block for a picture, `[1, S, D]`."""
    net = copy.deepcopy(model.net)  # others run the model meanwhile
    block = net.get_submodule(trace.attentions[0].module.rpartition(".")[0])
    captured: list[torch.Tensor] = []
    block.register_forward_pre_hook(lambda module, args: captured.append(args[0]))
    net(*model.inputs(image=picture))
    return captured[0]


def batch_norm(model: Model, trace: Trace) -> Measurement:
    """Measure the effect of a second picture in the batch on the first one's normalised tokens."""
    outputs = beside(model, trace)
    return Measurement(
        "the tokens that enter block 1, without γ and β, the largest change over the largest value",
        f"with a second picture in the batch, the first one's tokens change by {outputs.layer:g} in layer norm",
        f"In batch norm they change by {percent(outputs.batch)}",
        verdict_of(outputs.layer == 0 and not close(outputs.batch)),
        "notes",
        (("note", "contrasts"),),
    )
