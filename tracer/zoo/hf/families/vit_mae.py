"""ViTMAE of transformers: a masked autoencoder of photos (He et al. 2022)."""

from __future__ import annotations

from dataclasses import replace

import torch

from tracer.inputs.model_inputs import Inputs
from tracer.record import Segment
from tracer.spec.preparation import photo_input, place_visible
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.names import Hint
from tracer.zoo.hf.spec_builders import ATTENTION, answers, builder, sizes_of

ATTRIBUTES = {
    "H": "image_size",
    "C": "num_channels",
    "P": "patch_size",
    "D": "hidden_size",
    "h": "num_attention_heads",
    "d_ff": "intermediate_size",
    "L": "num_hidden_layers",
    "D_dec": "decoder_hidden_size",
    "h_dec": "decoder_num_attention_heads",
    "d_ffdec": "decoder_intermediate_size",
    "L_dec": "decoder_num_hidden_layers",
}
PROBES = (
    {"B": 19, "H": 30, "C": 2, "P": 5, "D": 72, "h": 6, "d_ff": 13, "D_dec": 28, "h_dec": 4, "d_ffdec": 41},
    {"B": 13, "H": 42, "C": 5, "P": 3, "D": 16, "h": 2, "d_ff": 29, "D_dec": 60, "h_dec": 5, "d_ffdec": 43},
    {"B": 11, "H": 56, "C": 9, "P": 7, "D": 60, "h": 3, "d_ff": 37, "D_dec": 84, "h_dec": 6, "d_ffdec": 47},
)


ORDER = Claim(
    "The order of random numbers says which patches are hidden: those of the largest numbers are.",
    so.equation_is("ArgSort", "Kernel"),
    "two axes",
)
HINTS = (
    Hint("vit.embeddings.argsort", letter=r"\mathbf{s}", title="Shuffle", why=ORDER),
    Hint("vit.embeddings.argsort2", letter=r"\mathbf{r}", title="Undo the shuffling"),
    Hint("vit.embeddings.gather", letter=r"\mathbf{m}", title="Mark what is hidden"),
    Hint("decoder.decoder_embed*", letter=r"\mathbf{D}", below="D", title="To the decoder's width"),
    Hint("decoder.every", title="Mask tokens"),
    Hint("decoder.cat", letter=r"\mathbf{D}_m", title="Mask tokens for what is hidden", stage="embedding"),
    Hint("decoder.cat2", letter=r"\mathbf{D}_r", title="CLS in front, patches in their places", stage="embedding"),
    Hint("decoder.add", title="Add positions", stage="position"),
    Hint("decoder.decoder_pred*", letter=r"\hat{\mathbf{X}}_p", below="p", title="Predict the patches", stage="head"),
    Hint("patches", title="The patches themselves", stage="head"),
    Hint("logits", letter=r"\mathcal{L}", id="loss", title="Loss on the hidden patches"),
)


def noise(B: int, N: int, seed: int = 0) -> torch.Tensor:
    """Return the random numbers, `[B, N]`; their order selects the masked patches."""
    return torch.rand(B, N, generator=torch.Generator().manual_seed(seed))


def prepare(model, image, text, sizes) -> Inputs:
    """Return a photo `[B, C, H, W]` and seeded noise. The patches with the largest numbers are masked; the encoder
    reads the others in the order of their numbers."""
    seed = sizes.pop("seed")
    inputs = photo_input(model, image, text, sizes)
    N = (model.sizes["H"] // model.sizes["P"]) ** 2
    noise_rows = noise(sizes["B"], N, seed)
    segments = place_visible(inputs.segments, noise_rows[0].argsort().tolist())
    return replace(inputs, tensors=(*inputs, noise_rows), segments=segments)


def masked_result(model, inputs, output, tokenizer) -> dict:
    """Return the loss on the masked patches, and the visible patches in the order of the encoder."""
    return {
        "kind": "embedding",
        "shape": list(output["logits"].shape),
        "loss": float(output["loss"]),
        "visible": output["ids_restore"][0].argsort()[: int((output["mask"][0] == 0).sum())].tolist(),
    }


HEADS = {"ViTMAEForPreTraining": masked_result}


def segments(sizes) -> tuple[Segment, ...]:
    """Return CLS and the visible patches in the encoder, CLS and all patches in the decoder."""
    return (
        Segment("CLS", 0, 1, "vit"),
        Segment("visible", 1, sizes["N_v"] + 1, "vit"),
        Segment("CLS", 0, 1, "decoder"),
        Segment("image", 1, sizes["N"] + 1, "decoder"),
    )


def spec(config, files) -> Spec:
    """Return everything that is known of a ViTMAE, from its configuration."""
    visible = 1 - config.mask_ratio
    return Spec(
        net=builder(config, HEADS, ATTRIBUTES),
        whole=False,
        takes=("image",),
        samples="photos",
        sizes=sizes_of(config, ATTRIBUTES),
        settings={"seed": 0},
        options={"attention": ATTENTION},
        derived={"W": "H", "N": "H**2/P**2", "N_v": f"N/{round(1 / visible)}", "d_k": "D/h", "d_dec": "D_dec/h_dec"},
        names=tuple("B D N N+1 N_v N_v+1 N-N_v C P H H/P h d_k d_ff D_dec h_dec d_dec d_ffdec C*P**2".split()),
        probes=PROBES,
        example=lambda sizes: (
            torch.randn(sizes["B"], sizes["C"], sizes["H"], sizes["H"]),
            noise(sizes["B"], (sizes["H"] // sizes["P"]) ** 2),
        ),
        prepare=prepare,
        result=answers(config, HEADS),
        segments=segments,
        hints=HINTS,
        parts={"vit": "L", "decoder": "L_dec"},
        tiny={**PROBES[0], "L": 2, "L_dec": 2},
    )
