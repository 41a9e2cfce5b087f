"""What the notes claim of pictures: patches as a convolution, the embedding, CLS, what comes out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from PIL import Image

from tracer.attention import rollout
from tracer.figures.classes import percent
from tracer.figures.labels import scientific, shape_numbers
from tracer.inputs import surfaces
from tracer.lessons.notes.claims.measured import Measured, close, kept, off
from tracer.models.shared.anomaly import anomaly_map
from tracer.models.shared.model import Model
from tracer.record import Trace


def _sizes(trace: Trace) -> dict[str, int]:
    return {one.name: one.value for one in trace.symbols}


def seen(trace: Trace, *, last: bool) -> torch.Tensor:
    """The picture that was cut, `[B, C, H, W]`, laid together again from its patches; `last` where these are flattened
    with channels last."""
    patches, at = kept(trace, "patches"), _sizes(trace)
    B, P, C = len(patches), at["P"], patches.shape[-1] // at["P"] ** 2
    grid = at["H"] // P, at["W"] // P
    cut = patches.view(B, *grid, *((P, P, C) if last else (C, P, P)))
    return cut.permute(*((0, 5, 1, 3, 2, 4) if last else (0, 3, 1, 4, 2, 5))).reshape(B, C, at["H"], at["W"])


def _convolved(model: Model, trace: Trace, last: bool, reordered: bool) -> torch.Tensor:
    """The embedding as a strided convolution, `[B, D, H/P, W/P]`; its weights `reordered` where patches are `last`."""
    P = _sizes(trace)["P"]
    linear = model.net.patches if hasattr(model.net, "patches") else model.net.embedding
    weight, C = linear.weight, linear.in_features // P**2
    kernel = weight.view(-1, P, P, C).permute(0, 3, 1, 2) if reordered else weight.view(-1, C, P, P)
    with torch.no_grad():
        return F.conv2d(seen(trace, last=last), kernel, linear.bias, stride=P)


def strided(model: Model, trace: Trace, *, last: bool) -> float:
    """How far a strided convolution is from the embedding of patches that lie channels-last, its weights reordered for
    that if `last`."""
    return off(_convolved(model, trace, True, last).flatten(2).mT, kept(trace, "embedding"))


def convolution(model: Model, trace: Trace) -> Measured:
    """The patches' embedding as a convolution."""
    error = off(_convolved(model, trace, False, False).flatten(2).mT, kept(trace, "embedding"))
    said = (
        f"a convolution with kernel and stride {_sizes(trace)['P']} and the same weights gives the same, "
        f"to within {scientific(error)}"
    )
    return Measured(said, "holds" if close(error) else "not", "trace", (("step", "embedding"),))


def convolution_shapes(model: Model, trace: Trace) -> Measured:
    """The shapes of that convolution."""
    made, at = _convolved(model, trace, False, False), _sizes(trace)
    so = (
        tuple(made.shape[2:]) == (at["H"] // at["P"], at["W"] // at["P"])
        and made.flatten(2).mT.shape == kept(trace, "embedding").shape
    )
    said = f"{shape_numbers(tuple(made.shape))}, flattened and turned {shape_numbers(tuple(made.flatten(2).mT.shape))}"
    return Measured(said, "holds" if so else "not", "trace", (("step", "embedding"),))


def embedding_space(model: Model, trace: Trace) -> Measured:
    """Which patches lie next to which, before and after the embedding."""
    near = []
    for step in ("patches", "embedding"):
        unit = F.normalize(kept(trace, step)[0], dim=-1)
        near.append((unit @ unit.T).fill_diagonal_(-2).argmax(-1))
    other = float((near[0] != near[1]).float().mean())
    said = (
        f"{percent(other)} of the patches have another nearest patch after the embedding than by their "
        "pixels; that this is meaning, one matrix does not show"
    )
    return Measured(said, "sense" if other > 0 else "not", "trace", (("step", "embedding"),))


def basis(model: Model, trace: Trace) -> Measured:
    """The embedding as a change of basis: does it keep what a basis keeps?"""
    W = model.net.embedding.weight.detach()
    values = torch.linalg.svdvals(W)
    rank = int((values > 1e-6 * values[0]).sum())
    said = (
        f"the matrix is {W.shape[1]} × {W.shape[0]} of rank {rank}, so nothing is lost; but it "
        f"stretches by {float(values[-1]):.2g} to "
        f"{float(values[0]):.2g}, where a change of orthonormal basis has 1"
    )
    return Measured(said, "sense" if rank == min(W.shape) else "not", "trace", (("step", "embedding"),))


def cls_learned(model: Model, trace: Trace) -> Measured:
    """The CLS vector as the code makes it, and as it is."""
    begun, now = model.spec.net(**model.sizes).cls.detach(), model.net.cls.detach()
    said = (
        f"the code begins with {'zeros' if not begun.any() else 'random numbers'}; trained, its length is "
        f"{float(now.norm()):.3g}"
    )
    return Measured(said, "sense" if not begun.any() else "holds", "trace", (("step", "sequence"),))


def cls_constant(model: Model, trace: Trace) -> Measured:
    """Whether CLS enters as the parameter it is."""
    row = kept(trace, "sequence")[:, 0]
    so = torch.equal(row, model.net.cls.expand_as(row))
    said = f"row 0 of the sequence is the parameter, bit for bit: {'yes' if so else 'no'}; no pixel is in it"
    return Measured(said, "holds" if so else "not", "trace", (("step", "sequence"),))


def cls_gathers(model: Model, trace: Trace) -> Measured:
    """How much of CLS comes from patches, rolled out over the blocks."""
    row = rollout(trace)[0, 0]
    said = (
        f"rolled out over the blocks, CLS takes {percent(float(row[1:].sum()))} from patches, from each "
        f"of {len(row) - 1} at least {percent(float(row[1:].min()))}"
    )
    return Measured(said, "holds" if float(row[1:].min()) > 0 else "not", "attention", (("head", "rollout"),))


def only_cls(model: Model, trace: Trace) -> Measured:
    """The logits from row 0 alone."""
    with torch.no_grad():
        error = off(model.net.head(kept(trace, "norm")[:, 0]), kept(trace, "logits"))
    said = f"the head on row 0 alone gives the logits, to within {scientific(error)}"
    return Measured(said, "holds" if close(error) else "not", "trace", (("step", "cls"),))


def what_and_where(model: Model, trace: Trace) -> Measured:
    """The sum of what a token shows and where it lies."""
    what, both = kept(trace, "sequence")[0], kept(trace, "position")[0]
    place = both - what
    error = off(place, model.net.position.detach())
    said = (
        f"on average a token's content is {float(what.norm(dim=-1).mean()):.3g} long, its place "
        f"{float(place.norm(dim=-1).mean()):.3g}"
    )
    return Measured(
        f"{said}; their sum is what ran, to within {scientific(error)}",
        "holds" if error < 1e-4 else "not",
        "trace",
        (("step", "position"),),
    )


def patch_resolution(model: Model, trace: Trace) -> Measured:
    """How many numbers a picture's attention has."""
    at = _sizes(trace)
    said = f"{at['N']} weights for {at['H'] * at['W']:,} pixels: one for each patch of {at['P']} × {at['P']}"
    return Measured(said, "holds" if at["N"] * at["P"] ** 2 == at["H"] * at["W"] else "not", "attention")


def global_context(model: Model, trace: Trace) -> Measured:
    """How much of every patch's token comes from every other."""
    found = rollout(trace)[0]
    said = (
        f"rolled out over {len(trace.attentions)} blocks, every token takes from every other: at least "
        f"{scientific(float(found.min()))}"
    )
    return Measured(said, "holds" if float(found.min()) > 0 else "not", "attention", (("head", "rollout"),))


def normal(model: Model, trace: Trace) -> Measured:
    """How well hidden patches are predicted, beside the mean of the visible ones."""
    pixels, made = kept(trace, "patches")[0], kept(trace, "prediction")[0]
    visible = list(next(one.places for one in trace.segments if one.places))
    hidden = [i for i in range(len(pixels)) if i not in visible]
    error = float((made[hidden] - pixels[hidden]).square().mean().sqrt())
    plain = float((pixels[visible].mean(0) - pixels[hidden]).square().mean().sqrt())
    said = (
        f"{len(hidden)} hidden patches: predicted with an error of {error:.3f}; the mean of the visible "
        f"ones has {plain:.3f}"
    )
    return Measured(said, "holds" if error < plain else "not", "overview", (("model", model.name),))


def defect(model: Model, trace: Trace) -> Measured:
    """How badly a scratch is predicted, beside the same surface without it."""
    clean = surfaces.surface("stripes", 7)
    marred, mask = surfaces.damage(clean, 3, "scratch")
    maps = [anomaly_map(model.net, model.inputs(Image.fromarray(pixels))[0])[0] for pixels in (clean, marred)]
    covered = torch.from_numpy(surfaces.patch_mask(mask, model.net.P))
    with_it, without, beside = maps[1][covered].mean(), maps[0][covered].mean(), maps[1][~covered].mean()
    said = (
        f"scratched patches are mispredicted by {with_it:.3f}, the same ones without the scratch by "
        f"{without:.3f}, those beside it by {beside:.3f}"
    )
    return Measured(
        said, "holds" if with_it > 2 * max(without, beside) else "not", "overview", (("model", model.name),)
    )


def open_vocabulary(model: Model, trace: Trace) -> Measured:
    """Which of the sentences given fits the picture, by cosines."""
    cosines = kept(trace, "cosines")
    said = (
        f"{cosines.shape[-1]} sentences that the visitor chose are compared with the picture: cosines "
        f"{', '.join(f'{float(one):.2f}' for one in cosines[0])}"
    )
    return Measured(said, "holds", "overview", (("model", model.name),))
