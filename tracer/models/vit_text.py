"""ViT and text in one stream: patches first, then words that describe the picture (note 000, part II)."""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from tracer.attention import masks
from tracer.expr import Plus
from tracer.expr.indexing import PrefixMask
from tracer.inputs.synthetic import MAX_WORDS, VOCABULARY
from tracer.record import Segment
from tracer.spec.blocks import Block, Past, add_blocks, open_caches, past_length, patch_count
from tracer.spec.decoding import with_cache
from tracer.spec.preparation import captioned_input, counted_tokens, random_photos
from tracer.spec.results import logits_hints, picture_caption
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.explanations import FROM_0, LONGER_TABLE_CLAIMS, WHY, positions
from tracer.textbook.names import Hint


class ViTText(nn.Module):
    """A decoder that predicts the next word at every word, after the picture (note 000, part II).

    It takes `[B, C, H, W]` float pixels, normalised as in training, and token numbers `[B, T]`, T at most T_max, the
    first of them the begin token; it returns logits `[B, T, V]` of the words alone. To go on from what it has read, it
    takes the keys and values, `past`, no image, and the new words, and returns those of all tokens beside the logits.

    `mask` is "causal", or "prefix", with the patches open to each other (Raffel et al. 2020, section 3.2.1), or
    "bidirectional", with all tokens open, so that a word sees its target; `tied` uses the embedding matrix as output
    matrix (Press and Wolf 2017); `types` adds one learned vector to all patches, another to all words.
    """

    def __init__(
        self,
        *,
        H: int,
        W: int,
        C: int,
        P: int,
        V: int,
        T_max: int,
        D: int,
        h: int,
        d_ff: int,
        L: int,
        mask="causal",
        tied=True,
        types=False,
        bias=True,
    ):
        super().__init__()
        self.P, self.N, self.mask = P, patch_count(H, W, P), mask
        self.patches = nn.Linear(C * P * P, D)
        self.image_positions = nn.Parameter(torch.randn(self.N, D) * 0.02)
        self.image_type = nn.Parameter(torch.randn(D) * 0.02) if types else None
        self.tokens = nn.Embedding(V, D)
        self.text_positions = nn.Parameter(torch.randn(T_max, D) * 0.02)
        self.text_type = nn.Parameter(torch.randn(D) * 0.02) if types else None
        self.blocks = add_blocks(self, L, lambda: Block(D=D, h=h, d_ff=d_ff, bias=bias, eps=1e-5))
        self.norm = nn.LayerNorm(D, eps=1e-5, bias=bias)
        self.head = None if tied else nn.Linear(D, V)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, image, tokens, past: Past | None = None) -> torch.Tensor | tuple[torch.Tensor, Past]:
        T, N, T_past = tokens.shape[1], self.N, past_length(past)
        start = 0 if image is not None else T_past - N  # words that it has read
        if len(self.text_positions) < start + T:
            raise ValueError(
                f"T={start + T} tokens are too many: the position table has T_max={len(self.text_positions)} rows"
            )
        if image is not None:
            B, C, H, W, P = *image.shape, self.P
            x = image.view(B, C, H // P, P, W // P, P)  # [B, C, H/P, P, W/P, P]
            x = x.permute(0, 2, 4, 1, 3, 5).reshape(B, N, C * P * P)  # [B, N, C·P²]
            x = self.patches(x)  # [B, N, D]
            x = x + self.image_positions  # [B, N, D]
        words = self.tokens(tokens)  # [B, T, D]
        words = words + self.text_positions[start : start + T]  # [B, T, D]
        if image is not None and self.image_type is not None:
            x = x + self.image_type  # [B, N, D]
        if self.text_type is not None:
            words = words + self.text_type  # [B, T, D]
        x = words if image is None else torch.cat([x, words], dim=1)  # [B, N+T, D]
        if self.mask == "bidirectional":
            mask = None
        elif image is None or self.mask == "causal":
            mask = masks.causal(x.shape[1], T_past, device=tokens.device)  # [N+T, N+T]
        else:
            mask = masks.prefix(N + T, N, device=image.device)  # [N+T, N+T]
        caches = open_caches(past, self.blocks)
        for name, cache in zip(self.blocks, caches, strict=True):
            x = self.get_submodule(name)(x, mask, cache)  # [B, N+T, D]
        x = self.norm(x)  # [B, N+T, D]
        x = x[:, x.shape[1] - T :].contiguous()  # [B, T, D]
        logits = F.linear(x, self.tokens.weight) if self.head is None else self.head(x)  # [B, T, V]
        return logits if past is None else (logits, tuple(cache.pair for cache in caches))


HINTS = (
    Hint(apart="add", module=""),
    Hint(
        "patches",
        title="Unfold to patches",
        letter=r"\mathbf{X}_{\mathrm{patch}}",
        why=WHY["cut"],
    ),
    Hint(
        "embedding",
        title="Project patches",
        below=r"\mathrm{patch}",
        why=(
            *WHY["embed"][1:2],
            Claim(
                "A convolution with kernel size and stride P computes the same sums, with the same weights in another "
                "shape."
            ),
        ),
        note="Note 000's convolution needs no reordering of weights where a patch is flattened channels first.",
    ),
    Hint(
        "position",
        title="Add image positions",
        letter=r"\mathbf{I}^{(0)}",
        why=(
            WHY["order"][0],
            positions("so that the model can tell left from right and top from bottom."),
        ),
        note="Note 000 calls these positions 2D; the table is a list of N rows in scan order, one for each place of "
        "the grid, so the sum itself knows nothing about rows and columns.",
    ),
    Hint(
        "embedding2",
        id="words",
        title="Look up words",
        letter=r"\mathbf{X}_{\mathrm{txt}}",
        why=(
            *WHY["row of a table"],
            Claim("From here on, a word and a patch look the same: each is a token of D numbers."),
        ),
        note=FROM_0,
    ),
    Hint(
        "position2",
        id="text_position",
        title="Add text positions",
        letter=r"\mathbf{X}_{\mathrm{txt}}^{(0)}",
        why=(
            Claim("Words form one line, so one number gives the position of each."),
            positions("from their own table: the first word is not the first patch."),
        ),
        note=LONGER_TABLE_CLAIMS,
    ),
    *(
        Hint(
            at,
            id=f"{kind}_type",
            stage="embedding",
            title=f"Mark as {kind}",
            letter=letter,
            why=(
                Claim(
                    "One more trainable vector, the same for all tokens of a kind, tells patches from words.",
                    so.adds_trainable,
                    "trainable",
                ),
                Claim("It is optional, since their positions differ already."),
            ),
        )
        for at, kind, letter in (
            ("add", "image", r"\mathbf{I}^{\mathrm{type}}"),
            ("add2", "text", r"\mathbf{X}_{\mathrm{txt}}^{\mathrm{type}}"),
        )
    ),
    Hint("parameter image_type", letter=r"\mathbf{T}_{\mathrm{img}}"),
    Hint("parameter text_type", letter=r"\mathbf{T}_{\mathrm{txt}}"),
    Hint(
        "sequence",
        title="One sequence",
        why=(
            Claim(
                "Patches first, then words, in one sequence that the same blocks read.",
                so.part("sequence"),
                "all segments",
            ),
            Claim("Each word can look back at the picture, because the picture comes before it."),
        ),
    ),
    Hint(
        "mask",
        role="causal M",
        why=(
            *WHY["no look ahead"][1:],
            Claim(
                "Words see the whole picture and the words before them, because the picture comes first.",
                so.causal,
                "causal",
            ),
        ),
        note=Claim(
            "Note 000 does not say it, but under this mask patches can't see later patches either: the first sees "
            "only itself.",
            so.causal,
        ),
    ),
    Hint(
        "mask",
        role="prefix M",
        why=(
            Claim(
                "Words see the picture and the words before them, and the patches see each other fully.",
                so.has(PrefixMask),
                "prefix mask",
            ),
            Claim("The words have to be hidden from what comes before them: they are what is predicted."),
        ),
        note=Claim(
            "Note 000 has the causal mask only; under this one the patches also see later patches.",
            so.has(PrefixMask),
        ),
    ),
    Hint(
        "*.attention.query",
        note="Note 000 has no biases in attention; whether attention has some is an option.",
    ),
    Hint(
        "*.attention.scores",
        role="masked S",
        note="Note 000 writes S for these scores as for the length, and divides by √D, since its one head is D wide.",
    ),
    Hint(
        "*.attention.scores",
        role="S",
        note=Claim(
            "Note 000 adds the causal mask here; none runs, and each word also sees the words after it.",
            so.open_to_first,
        ),
    ),
    Hint("*.attention.context", note="Note 000 calls this H, like the height of the image."),
    Hint(
        "*.attention.residual",
        note=Claim("Note 000's summary calls this sum “Add & norm”; there is no norm in it.", so.top(Plus)),
    ),
    Hint("*.mlp.hidden", note="Note 000 has the biases b_1 and b_2 in the MLP; whether it has them is an option."),
    Hint("*.mlp.output", note="Note 000 calls this M, like the mask."),
    Hint(
        "tokens",
        id="text",
        stage="head",
        title="Text only",
        letter=r"\mathbf{X}_{f,\mathrm{txt}}",
        why=(
            Claim(
                "The model predicts words only, so it reads only the tokens of words.",
                so.ends_in_axis("T"),
                "some rows",
            ),
            Claim("Information from the picture has reached them through attention."),
        ),
        note="Note 000 drops the last image position; without a begin token in front of the text, nothing would then "
        "predict the first word.",
    ),
    *logits_hints("Note 000's summary leaves out the bias of the separate head; its section 2 has it."),
)

OF_PATCHES = ("patches", "embedding", "position", "sequence", "tokens")
OF_WORDS = ("embedding2", "position2")
CACHED_HINTS = tuple(
    replace(hint, at=hint.at.removesuffix("2"), note="") if hint.at in OF_WORDS else hint
    for hint in HINTS
    if hint.at not in OF_PATCHES
)
"""Hints where the picture is in the cache, so that words are all that is embedded."""

SPEC = Spec(
    decoder=partial(with_cache, hints=CACHED_HINTS),
    net=ViTText,
    hints=HINTS,
    takes=("image", "text"),
    samples="scenes",
    sizes={"H": 64, "W": 64, "C": 3, "P": 8, "V": len(VOCABULARY), "T_max": MAX_WORDS + 1}
    | {"D": 96, "h": 4, "d_ff": 384, "L": 4},
    derived={"N": "H*W/P**2", "d_k": "D/h"},
    names=("B", "D", "N", "T", "N + T", "V", "T_max", "C", "P", "H", "W", "H/P", "W/P", "h", "d_k", "d_ff", "C*P**2"),
    probes=(
        {"B": 19, "T": 8, "H": 35, "W": 15, "C": 2, "P": 5, "V": 23, "T_max": 13, "D": 66, "h": 6, "d_ff": 17},
        {"B": 13, "T": 7, "H": 15, "W": 33, "C": 4, "P": 3, "V": 31, "T_max": 17, "D": 20, "h": 2, "d_ff": 29},
        {"B": 10, "T": 9, "H": 21, "W": 35, "C": 6, "P": 7, "V": 41, "T_max": 27, "D": 52, "h": 4, "d_ff": 37},
    ),
    example=lambda sizes: (*random_photos(sizes), *counted_tokens(sizes)),
    prepare=captioned_input,
    result=picture_caption,
    segments=lambda sizes: (
        Segment("image", 0, sizes["N"]),
        Segment("text", sizes["N"], sizes["N"] + sizes["T"]),
    ),
    runs=("B", "T"),
    vocabulary=VOCABULARY,
    options={
        "mask": ("causal", "prefix", "bidirectional"),
        "tied": (True, False),
        "types": (False, True),
        "bias": (True, False),
    },
    presets={
        "One head, as in the notes": {"h": 1},
        "A photo of 224 × 224 beside 64 words": {"H": 224, "W": 224, "P": 16, "T_max": 64, "T": 64, "D": 768, "h": 12}
        | {"d_ff": 3072, "L": 12},
    },
)
