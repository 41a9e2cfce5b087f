"""timm's Vision Transformers: plain ones, and those with registers or rotary positions."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tracer.models.shared.predictions import class_probabilities, embedding
from tracer.models.shared.preparation.to_tensors import photo_input
from tracer.models.shared.spec import Spec
from tracer.record import Segment

PROBES = (
    {"B": 19, "H": 35, "P": 5, "D": 72, "h": 6, "K": 17, "d_ff": 62},
    {"B": 13, "H": 33, "P": 3, "D": 80, "h": 4, "K": 23, "d_ff": 74},
    {"B": 7, "H": 14, "P": 2, "D": 24, "h": 2, "K": 29, "d_ff": 86},
    {"B": 9, "H": 42, "P": 7, "D": 100, "h": 5, "K": 31, "d_ff": 98},
)


def is_one(net: torch.nn.Module) -> bool:
    """Return whether a model is a Vision Transformer whose sizes can be changed: square photos and patches, equal
    blocks."""
    if not all(hasattr(net, name) for name in ("patch_embed", "blocks", "num_prefix_tokens", "embed_dim")):
        return False
    patches, block = net.patch_embed, net.blocks[0] if len(net.blocks) else None
    sides = (getattr(patches, "img_size", None), getattr(patches, "patch_size", None))
    return (
        all(isinstance(side, tuple) and len(side) == 2 and side[0] == side[1] for side in sides)
        and hasattr(getattr(patches, "proj", None), "in_channels")
        and hasattr(getattr(block, "attn", None), "num_heads")
        and hasattr(getattr(getattr(block, "mlp", None), "fc2", None), "in_features")
    )


def spec(net: torch.nn.Module, create: Callable[..., torch.nn.Module]) -> Spec:
    """Return the `Spec` of a Vision Transformer, measured on the model itself; `create` builds it with other
    settings."""
    prefix, block = net.num_prefix_tokens, net.blocks[0]
    registers = getattr(net, "num_reg_tokens", 0)
    classes = {"K": net.num_classes} if net.num_classes else {}  # without a head it gives features
    derived = {"W": "H", "C": str(net.patch_embed.proj.in_channels), "N": "H**2/P**2", "d_k": "D/h"}
    S = "S" if prefix > 1 else "N+1" if prefix else "N"
    if prefix > 1:
        derived["S"] = f"N + {prefix}"
    names = ["B", "D", "N", S, "P", "H", "H/P", "h", "d_k", "d_k/2", "d_ff", "2*d_ff", *classes]
    probes = tuple({name: size for name, size in probe.items() if name != "K" or classes} for probe in PROBES)

    def segments(sizes) -> tuple[Segment, ...]:
        first = (Segment("CLS", 0, prefix - registers),) if prefix > registers else ()
        registers_segment = (Segment("registers", prefix - registers, prefix),) if registers else ()
        return (*first, *registers_segment, Segment("image", prefix, prefix + sizes["N"]))

    return Spec(
        net=lambda **sizes: _build(create, **sizes),
        whole=False,
        takes=("image",),
        samples="photos",
        sizes={
            "H": net.patch_embed.img_size[0],
            "P": net.patch_embed.patch_size[0],
            "D": net.embed_dim,
            "h": block.attn.num_heads,
            "L": len(net.blocks),
            **classes,
            "d_ff": _mlp_width(net),
        },
        derived=derived,
        names=tuple(dict.fromkeys(names)),
        probes=probes,
        example=lambda sizes: (torch.randn(sizes["B"], net.patch_embed.proj.in_channels, sizes["H"], sizes["H"]),),
        prepare=photo_input,
        result=class_probabilities if classes else embedding,
        segments=segments,
        tiny={**probes[0], "L": 2},
    )


def _build(create: Callable, *, H: int, P: int, D: int, h: int, L: int, d_ff: int, K: int = 0) -> torch.nn.Module:
    sizes = {"img_size": H, "patch_size": P, "embed_dim": D, "num_heads": h, "depth": L, "num_classes": K}
    for halves in (1, 2):  # of a gated MLP (SwiGLU, Shazeer 2020) some models count both halves
        ratio = (halves * d_ff + 0.5) / D  # which is rounded down
        net = create(**sizes, mlp_ratio=ratio)
        if _mlp_width(net) == d_ff:
            break
    return net


def _mlp_width(net: torch.nn.Module) -> int:
    """Return the hidden width of the MLPs."""
    return net.blocks[0].mlp.fc2.in_features
