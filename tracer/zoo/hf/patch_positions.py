"""Positions of a photo's patches in the sequence of a generic net, found by changing one patch."""

from __future__ import annotations

import torch

from tracer.record import Segment
from tracer.utils.thread_local_rng import seeded_draws
from tracer.zoo.hf.config_attributes import at, attributes, number
from tracer.zoo.hf.dummy.input_signatures import Feed, parameters, usual


def patches_start(net: torch.nn.Module, config, feed: Feed) -> int | None:
    """Return how many tokens precede the patches in the sequence that attention mixes, if each patch is one token and
    they are in reading order; else None.

    A changed patch changes one token of every layer before the first that mixes tokens, and all tokens behind it.
    """
    paths = attributes(config, type(net), feed.names)
    if "pixel_values" not in feed.names or not {"H", "P"} <= paths.keys():
        return None
    H, P = (number(*at(config, paths[symbol])) or 0 for symbol in "HP")
    inputs = feed.make(config, usual(config))
    photo = inputs["pixel_values"]
    if photo.shape[-2:] != (H, H) or H % P or H == P:
        return None
    first, last = photo.clone(), photo.clone()
    first[..., :P, :P] += 1
    last[..., -P:, -P:] += 1
    plain, *changed = (_sequences(net, {**inputs, "pixel_values": pixels}) for pixels in (photo, first, last))
    N, start = (H // P) ** 2, None
    for index, before in enumerate(plain):
        rows = [_different(before, each[index]) for each in changed if index < len(each)]
        if len(rows) < 2 or before.shape[1] < N:
            return None
        if [len(each) for each in rows] == [1, 1] and rows[1][0] - rows[0][0] == N - 1:
            start = rows[0][0], before.shape[1]
        elif start and all(len(each) == before.shape[1] == start[1] for each in rows):
            return start[0]
    return None


def resizes(module: torch.nn.Module) -> bool:
    """Return whether a module interpolates its position embeddings to photos of other sizes by default."""
    table = getattr(module, "position_embeddings", None)
    known = parameters(type(module))
    return (
        isinstance(table, torch.nn.Parameter)
        and hasattr(module, "interpolate_pos_encoding")
        and "interpolate_pos_encoding" not in known
    )


def _sequences(net: torch.nn.Module, named_inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs `[1, S, D]` of all modules, in the order of their ends."""
    sequences: list[torch.Tensor] = []

    def keep(module, inputs, output) -> None:
        output = output[0] if isinstance(output, tuple) and output else output
        if isinstance(output, torch.Tensor) and output.dim() == 3:
            sequences.append(output)

    hooks = [module.register_forward_hook(keep) for module in net.modules()]
    try:
        with torch.no_grad(), seeded_draws(0):
            net(**named_inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return sequences


def _different(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    """Return the tokens that differ between two outputs."""
    return (before != after).any(-1)[0].nonzero().flatten().tolist() if before.shape == after.shape else []


def segments_of(start: int, config, N: int, part: str = "") -> tuple[Segment, ...]:
    """Return CLS, the registers of a configuration, and the N patches of such a sequence."""
    registers = start - min(start, number(config, "num_register_tokens") or 0)
    named = (("CLS", 0, registers), ("registers", registers, start), ("image", start, start + N))
    return tuple(Segment(*segment, part) for segment in named if segment[1] < segment[2])
