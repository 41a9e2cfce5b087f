"""Notes' claims on pictures: patches as a convolution, the embedding, CLS, the output."""

from __future__ import annotations

import copy
from math import ceil
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

import tracer
from tracer.attention import parts, places, rollout, weights
from tracer.inputs import synthetic
from tracer.inputs.model_inputs import samples
from tracer.lessons.notes.claims.structure import influence
from tracer.lessons.notes.measurement import (
    CONTRASTS,
    FIRST_BLOCK,
    ROLLOUT,
    Measurement,
    at_step,
    close,
    of_model,
    off,
    tensor_of,
    verdict_of,
)
from tracer.record import Trace, tolerance
from tracer.spec.results import anomaly_map
from tracer.spec.spec import Model
from tracer.utils.text import percent, scientific, shape_numbers
from tracer.utils.torch_state import seeded_draws


def _sizes(trace: Trace) -> dict[str, int]:
    return {symbol.name: symbol.value for symbol in trace.symbols}


def reassemble(trace: Trace, *, last: bool) -> torch.Tensor:
    """Return the picture before patching, `[B, C, H, W]`, reassembled from its patches.

    With `last` the patches are flattened with channels last.
    """
    patches, at = tensor_of(trace, "patches"), _sizes(trace)
    B, P, C = len(patches), at["P"], patches.shape[-1] // at["P"] ** 2
    grid = at["H"] // P, at["W"] // P
    cut = patches.view(B, *grid, *((P, P, C) if last else (C, P, P)))
    return cut.permute(*((0, 5, 1, 3, 2, 4) if last else (0, 3, 1, 4, 2, 5))).reshape(B, C, at["H"], at["W"])


def _convolve(model: Model, trace: Trace, last: bool, reordered: bool) -> torch.Tensor:
    """Return the embedding as a strided convolution, `[B, D, H/P, W/P]`.

    Its weights are `reordered` if patches are flattened with channels `last`.
    """
    P = _sizes(trace)["P"]
    linear = model.net.patches if hasattr(model.net, "patches") else model.net.embedding
    weight, C = linear.weight, linear.in_features // P**2
    kernel = weight.view(-1, P, P, C).permute(0, 3, 1, 2) if reordered else weight.view(-1, C, P, P)
    with torch.no_grad():
        return F.conv2d(reassemble(trace, last=last), kernel, linear.bias, stride=P)


def strided_error(model: Model, trace: Trace, *, last: bool) -> float:
    """Return the error of a strided convolution against the embedding of patches.

    With `last` patches are flattened channels-last, and the weights are reordered for that.
    """
    return off(_convolve(model, trace, True, last).flatten(2).mT, tensor_of(trace, "embedding"))


def convolution(model: Model, trace: Trace) -> Measurement:
    """Measure the patches' embedding as a convolution."""
    ran = tensor_of(trace, "embedding")
    error, flipped = (off(_convolve(model, trace, False, way).flatten(2).mT, ran) for way in (False, True))
    return Measurement(
        "all patches, the largest difference over the largest value",
        f"a convolution with kernel and stride {_sizes(trace)['P']} and the same weights gives the same, to within "
        f"{scientific(error)}",
        f"With weights that are read channels-last it is off by {percent(flipped)}",
        verdict_of(close(error) and not close(flipped)),
        *at_step("embedding"),
    )


def convolution_shapes(model: Model, trace: Trace) -> Measurement:
    """Measure the shapes of that convolution."""
    image, at = _convolve(model, trace, False, False), _sizes(trace)
    tokens, ran, P = image.flatten(2).mT, tensor_of(trace, "embedding"), at["P"]
    kernel = torch.zeros(image.shape[1], reassemble(trace, last=False).shape[1], P, P)
    denser = F.conv2d(reassemble(trace, last=False), kernel, stride=max(1, P // 2))
    so = (
        tuple(image.shape[2:]) == (at["H"] // P, at["W"] // P)
        and tokens.shape == ran.shape != denser.flatten(2).mT.shape
    )
    return Measurement(
        f"a picture of {at['H']} × {at['W']}, P = {P}",
        f"{shape_numbers(tuple(image.shape))}, flattened and transposed {shape_numbers(tuple(tokens.shape))}, which is "
        "the shape of the embedding that ran",
        f"With half the stride it would be {shape_numbers(tuple(denser.shape))}",
        verdict_of(so),
        *at_step("embedding"),
    )


DRAWS = 8
"""Random matrices of a baseline."""


def _nearest(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nearest row to each row, by the cosine and by the distance."""
    unit = F.normalize(rows, dim=-1)
    far = torch.cdist(rows, rows) + torch.diag(torch.full((len(rows),), torch.inf))
    return (unit @ unit.T).fill_diagonal_(-2).argmax(-1), far.argmin(-1)


def embedding_space(model: Model, trace: Trace) -> Measurement:
    """Measure the nearest patches before and after the embedding, beside random matrices."""
    pixels, embedded = tensor_of(trace, "patches")[0], tensor_of(trace, "embedding")[0]
    before = _nearest(pixels)

    def changed_shares(rows: torch.Tensor) -> list[float]:
        return [float((a != b).float().mean()) for a, b in zip(before, _nearest(rows), strict=True)]

    cosine, distance = changed_shares(embedded)
    random, shape = torch.Generator().manual_seed(0), (pixels.shape[-1], embedded.shape[-1])
    chance = sum(changed_shares(pixels @ torch.randn(shape, generator=random))[0] for _ in range(DRAWS)) / DRAWS
    return Measurement(
        f"{len(pixels)} patches of one photo, which patch is nearest to each",
        f"{percent(cosine)} have another nearest patch after the embedding than by their pixels, measured by the "
        f"cosine; {percent(distance)} measured by the distance. One matrix does not show that this is meaning",
        f"After a random matrix, it is {percent(chance)}, by the cosine",
        "sense" if cosine > 0 else "not",
        *at_step("embedding"),
    )


def basis(model: Model, trace: Trace) -> Measurement:
    """Measure whether the embedding preserves what a change of basis preserves."""
    W = model.net.embedding.weight.detach()
    values = torch.linalg.svdvals(W)
    rank = int((values > 1e-6 * values[0]).sum())
    rotation = torch.linalg.qr(torch.randn(W.shape, generator=torch.Generator().manual_seed(0)).T)[0]
    plain = torch.linalg.svdvals(rotation)
    orthonormal = close(float((values - 1).abs().max()))
    return Measurement(
        "the embedding's matrix, its singular values",
        f"it is {W.shape[1]} × {W.shape[0]} of rank {rank}{', so nothing is lost' if rank == W.shape[1] else ''}; it "
        f"stretches by {float(values[-1]):.2g} to {float(values[0]):.2g}",
        f"A change of orthonormal basis stretches by {float(plain.min()):.3g} to {float(plain.max()):.3g}",
        "not" if rank < min(W.shape) else "holds" if orthonormal else "sense",
        *at_step("embedding"),
    )


def _rows_of_cls(model: Model, trace: Trace) -> tuple[torch.Tensor, float]:
    """Return row 0 of the sequence for a second photo, `[D]`, and its change after the first block.

    Raise ValueError for a model without a second sample.
    """
    photos = list(samples(model.spec.samples).values())[:2]
    if len(photos) < 2:
        raise ValueError(f"{model.name} takes no batch of two photos")
    pairs = [_through_block(model, trace, photo()) for photo in photos]
    entering, leaving = ([each[0, 0] for each in side] for side in zip(*pairs, strict=True))
    with torch.no_grad():
        return entering[1] - model.net.position[0], off(leaving[1], leaving[0])


def cls_learned(model: Model, trace: Trace) -> Measurement:
    """Measure the CLS vector as initialised by the code, and as trained."""
    start, now = model.spec.net(**model.sizes).cls.detach(), model.net.cls.detach()
    begins = "zeros" if not start.any() else f"random numbers of length {float(start.norm()):.3g}"
    moved = off(now, start) > 0
    return Measurement(
        "the CLS vector, its length",
        f"as it is now, it is {float(now.norm()):.3g} long",
        f"The code begins with {begins}",
        "not" if not moved else "holds" if start.any() else "sense",
        *at_step("sequence"),
    )


def cls_constant(model: Model, trace: Trace) -> Measurement:
    """Measure whether CLS enters as its parameter, whatever the photo."""
    row = tensor_of(trace, "sequence")[:, 0]
    second, moved = _rows_of_cls(model, trace)
    same, again = torch.equal(row, model.net.cls.expand_as(row)), close(off(second, model.net.cls.detach()))
    return Measurement(
        "row 0 of the sequence, as it enters",
        f"it is the parameter, {'bit for bit' if same else 'which it is not'}; for another photo it is "
        f"{'the same' if again else 'another one'}",
        f"After the first block, the rows of the two photos differ by {percent(moved)} of the largest value",
        verdict_of(same and again and not close(moved)),
        *at_step("sequence"),
    )


def cls_fixed(model: Model, trace: Trace) -> Measurement:
    """Measure whether CLS was trained, and stays the same from one photo to the next."""
    start, now = model.spec.net(**model.sizes).cls.detach(), model.net.cls.detach()
    second, moved = _rows_of_cls(model, trace)
    trained, fixed = off(now, start) > 0, close(off(second, now))
    return Measurement(
        "the CLS vector, its length, and row 0 of the sequence for two photos",
        f"training moved it by {float((now - start).norm()):.3g}, from {float(start.norm()):.3g} to "
        f"{float(now.norm()):.3g}; for another photo it is {'the same' if fixed else 'another one'}",
        f"After the first block, the rows of the two photos differ by {percent(moved)} of the largest value",
        verdict_of(trained and fixed and not close(moved)),
        *at_step("sequence"),
    )


def cls_gathers(model: Model, trace: Trace) -> Measurement:
    """Measure the effect of each patch on the CLS of the last block, beside that of an even rollout."""
    row, moved = rollout(trace)[0, 0], influence(model, trace)[1:, 0]
    L, S = len(trace.attentions), len(row)
    even = (1 - 0.5**L) * (S - 1) / S
    count = int((moved > 0).sum())
    return Measurement(
        f"all {L} blocks, mean over heads; each patch changed in sign on its own",
        f"{count} of {S - 1} patches move the CLS of the last block, the least of them by "
        f"{scientific(float(moved.min()))} of its largest value; rolled out, CLS takes {percent(float(row[1:].sum()))} "
        f"from patches, from each at least {percent(float(row[1:].min()))}",
        f"As it enters, CLS is moved by none; evenly shared attention rolled out would take {percent(even)} from "
        "patches",
        verdict_of(not bool((moved <= tolerance("float32")).any())),
        *ROLLOUT,
    )


def only_cls(model: Model, trace: Trace) -> Measurement:
    """Measure the logits from row 0 alone."""
    ran, rows = tensor_of(trace, "logits"), tensor_of(trace, "norm")
    with torch.no_grad():
        error, difference = (off(model.net.head(rows[:, at]), ran) for at in (0, 1))
    return Measurement(
        "the logits, the largest difference over the largest value",
        f"the head on row 0 alone gives them, to within {scientific(error)}",
        f"On row 1, the first patch, it gives logits that are off by {percent(difference)}",
        verdict_of(close(error) and not close(difference)),
        *at_step("cls"),
    )


def keeps_space(model: Model, trace: Trace) -> Measurement:
    """Measure what becomes of the patches' order after the last block: in a map of labels, and in a classifier."""
    if "grid" not in {step.id for step in trace.steps}:
        raise ValueError(f"{model.name} lays no tokens out as a grid")
    classifier = tracer.load("vit")
    labels, turned = tensor_of(trace, "logits"), _with_patches_reversed(model)
    rows, columns = (size // _sizes(trace)["P"] for size in labels.shape[1:3])
    cells = labels.unflatten(2, (columns, -1)).unflatten(1, (rows, -1)).flip(1, 3).flatten(1, 2).flatten(2, 3)
    kept, unturned = off(turned, cells), off(turned, labels)
    with torch.no_grad():
        scores = classifier.net(*classifier.inputs())
    moved = off(_with_patches_reversed(classifier), scores)
    return Measurement(
        "the patch tokens after the last norm, put in reverse order",
        f"in the map, {shape_numbers(tuple(labels.shape))}, the labels of all {rows * columns} patches are in reverse "
        f"order then, to within {scientific(kept)}; the one label that vit gives a whole image, "
        f"{shape_numbers(tuple(scores.shape))}, has scores that change by {scientific(moved)}",
        f"Beside the map as it was, it is off by {percent(unturned)} of the largest",
        verdict_of(close(kept) and close(moved) and not close(unturned)),
        *at_step("grid"),
    )


@torch.no_grad()
def _with_patches_reversed(model: Model) -> torch.Tensor:
    """Return the output of a net whose last norm hands the patches on in reverse order, after CLS."""

    def reverse(norm, inputs, tokens):
        return torch.cat([tokens[:, :1], tokens[:, 1:].flip(1)], dim=1)

    net: Any = copy.deepcopy(model.net)
    net.norm.register_forward_hook(reverse)
    return net(*model.inputs())


def what_and_where(model: Model, trace: Trace) -> Measurement:
    """Measure the sum of a token's content and its position."""
    what, both = tensor_of(trace, "sequence")[0], tensor_of(trace, "position")[0]
    place = model.net.position.detach()
    error, shifted = off(what + place, both), off(what + place.roll(1, 0), both)
    return Measurement(
        f"{len(what)} tokens, mean lengths",
        f"a token's content is {float(what.norm(dim=-1).mean()):.3g} long, its place "
        f"{float(place.norm(dim=-1).mean()):.3g}; their sum is what ran, to within {scientific(error)}",
        f"With the place of the token before it, it is off by {percent(shifted)} of the largest value",
        verdict_of(close(error) and not close(shifted)),
        *at_step("position"),
    )


def patch_resolution(model: Model, trace: Trace) -> Measurement:
    """Measure the number of weights of a picture's attention."""
    at = _sizes(trace)
    keys = weights(trace, 0).shape[-1] - (trace.picture.first if trace.picture else 0)
    pixels = at["H"] * at["W"]
    return Measurement(
        "block 1, one query, its weights on patches",
        f"{keys} weights for {pixels:,} pixels: one for each patch of {at['P']} × {at['P']}",
        f"With one for each pixel there would be {pixels:,}",
        verdict_of(keys * at["P"] ** 2 == pixels and keys < pixels),
        *FIRST_BLOCK,
    )


def global_context(model: Model, trace: Trace) -> Measurement:
    """Measure whether every patch's token depends on all others."""
    moved = influence(model, trace)
    others = moved[~torch.eye(len(moved), dtype=torch.bool)]
    count = int((others > tolerance("float32")).sum())
    return Measurement(
        f"all {len(trace.attentions)} blocks; each token changed in sign on its own, all others looked at",
        f"{count:,} of {len(others):,} pairs move, the least by {scientific(float(others.min()))} of the largest value",
        "As they enter, none does",
        verdict_of(count == len(others)),
        *ROLLOUT,
    )


def normal(model: Model, trace: Trace) -> Measurement:
    """Measure the error on hidden patches, beside the mean of the visible ones and the context of another surface."""
    pixels, predicted = tensor_of(trace, "patches")[0], tensor_of(trace, "prediction")[0]
    visible = list(next(segment.places for segment in trace.segments if segment.places))
    hidden = [i for i in range(len(pixels)) if i not in visible]
    photos = list(samples(model.spec.samples).values())[:2]
    with torch.no_grad():
        image = model.inputs(image=photos[-1]())[0]
        result = model.net(image, torch.tensor([visible]))[0]

    def error(values: torch.Tensor) -> float:
        return float((values - pixels[hidden]).square().mean().sqrt())

    own, foreign, plain = error(predicted[hidden]), error(result[hidden]), error(pixels[visible].mean(0))
    return Measurement(
        f"{len(hidden)} hidden patches, in pixels, which the decoder predicts from the representations of the visible "
        "ones; root of the mean squared error",
        f"{own:.3f} from this surface's own context",
        f"From the context of another surface it is {foreign:.3f}, and the mean of the visible patches has {plain:.3f}",
        "sense" if own < min(plain, foreign) else "not",
        *of_model(model),
    )


def defect(model: Model, trace: Trace) -> Measurement:
    """Measure the error on a scratch, beside the same surface without it."""
    clean = synthetic.surface("stripes", 7)
    marred, mask = synthetic.damage(clean, 3, "scratch")
    maps = [anomaly_map(model.net, model.inputs(Image.fromarray(pixels))[0])[0] for pixels in (clean, marred)]
    covered = torch.from_numpy(synthetic.patch_mask(mask, model.net.P))
    with_it, without, beside = maps[1][covered].mean(), maps[0][covered].mean(), maps[1][~covered].mean()
    return Measurement(
        "a drawn surface with a scratch, the anomaly map, mean over patches",
        f"scratched patches are mispredicted by {with_it:.3f}",
        f"Without the scratch, the same ones are mispredicted by {without:.3f}, those beside it by {beside:.3f}",
        verdict_of(bool(with_it > 2 * max(without, beside))),
        *of_model(model),
    )


def open_vocabulary(model: Model, trace: Trace) -> Measurement:
    """Measure whether sentences can be exchanged without new weights: without one, the others' cosines stay."""
    image, tokens = model.inputs()
    cosines = tensor_of(trace, "cosines")
    with torch.no_grad():
        fewer = model.net(image, tokens[1:]) / model.net.log_scale.exp()
    stay = off(fewer, cosines[:, 1:])
    exchanged = off(cosines.roll(1, -1), cosines)
    return Measurement(
        f"one photo and {cosines.shape[-1]} sentences, cosines",
        f"{', '.join(f'{float(cosine):.2f}' for cosine in cosines[0])}; with one sentence fewer, the same weights "
        f"give those of the others to within {scientific(stay)}",
        f"The cosines of neighbouring sentences differ by up to {percent(exchanged)} of the largest",
        verdict_of(close(stay) and not close(exchanged)),
        *of_model(model),
    )


# Contrasts to attention and layer norm in the notes: a convolution's receptive field, and batch norm.

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
        *CONTRASTS,
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
    first, second = (_through_block(model, trace, picture())[0] for picture in pictures)
    both = torch.cat([first, second])

    def batch(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x.mT, None, None, training=True).mT

    def layer(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:])

    alone, together = (layer(first)[0], batch(first)[0]), (layer(both)[0], batch(both)[0])
    return NormComparison(alone, together, off(together[0], alone[0]), off(together[1], alone[1]))


@torch.no_grad()
def _through_block(model: Model, trace: Trace, picture) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input and the output of the first block for a picture, `[1, S, D]` each."""
    net = copy.deepcopy(model.net)  # others run the model meanwhile
    block = net.get_submodule(trace.attentions[0].module.rpartition(".")[0])
    captured: list[torch.Tensor] = []
    block.register_forward_hook(lambda module, args, output: captured.extend((args[0], output)))
    net(*model.inputs(image=picture))
    return captured[0], captured[1]


def batch_norm(model: Model, trace: Trace) -> Measurement:
    """Measure the effect of a second picture in the batch on the first one's normalised tokens."""
    outputs = beside(model, trace)
    return Measurement(
        "the tokens that enter block 1, without γ and β, the largest change over the largest value",
        f"with a second picture in the batch, the first one's tokens change by {outputs.layer:g} in layer norm",
        f"In batch norm they change by {percent(outputs.batch)}",
        verdict_of(outputs.layer == 0 and not close(outputs.batch)),
        *CONTRASTS,
    )
