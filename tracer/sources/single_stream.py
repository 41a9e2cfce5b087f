"""What models of transformers have alike in which patches and words share one stream."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tracer.record import Segment
from tracer.sources.configured import ATTENTION, sizes_of, stream
from tracer.sources.heads import answers


def place_of_a_patch(V: int) -> int:
    """The token that holds a patch's place: the last of the vocabulary."""
    return V - 1


def numbers(sizes: dict) -> torch.Tensor:
    """Token numbers `[B, N + T]` of a probe: the places of patches, then a text."""
    N = (sizes["H"] // sizes["P"]) ** 2
    ids = torch.randint(sizes["V"] - 1, (sizes["B"], N + sizes["T"]))
    ids[:, :N] = place_of_a_patch(sizes["V"])
    return ids


def segments(sizes: dict, part: str = "") -> tuple[Segment, ...]:
    """Patches, then text, in the stream, which is the module `part` of a model of several towers."""
    N = sizes["N"]
    return Segment("image", 0, N, part), Segment("text", N, N + sizes["T"], part)


def stream_facts(config, files, attributes: dict[str, str], heads: dict, pixels: Callable | None = None, types=False):
    """What the `Spec` of any such model says alike; `heads` as for `answers`, `pixels` and `types` as for `stream`."""
    known = config.image_token_id if files.exist else None
    return {
        "whole": False,
        "takes": ("image", "text"),
        "samples": "photos",
        "sizes": sizes_of(config, attributes),
        "runs": ("B", "T"),
        "options": {"attention": ATTENTION},
        "prepare": stream(
            files.tokenizer, lambda V: place_of_a_patch(V) if known is None else known, pixels, types=types
        ),
        "result": answers(config, heads, files.tokenizer),
    }
