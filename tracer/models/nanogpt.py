"""nanoGPT: a pre-norm causal decoder that predicts the next character (Radford et al. 2019; note 000, part I)."""

import torch
import torch.nn.functional as F
from torch import nn

from tracer.inputs.model_inputs import Characters
from tracer.record import Segment
from tracer.spec.blocks import Block, Past, add_blocks, causal, open_caches, past_length
from tracer.spec.checkpoints import from_gpt2
from tracer.spec.decoding import with_cache
from tracer.spec.preparation import counted_tokens, text_input
from tracer.spec.results import embedding_hint, logits_hints, next_tokens
from tracer.spec.spec import Spec
from tracer.textbook import claims as so
from tracer.textbook.claims import Claim
from tracer.textbook.explanations import FROM_0, LONGER_TABLE_CLAIMS, WHY, positions
from tracer.textbook.names import Hint


class NanoGPT(nn.Module):
    """A decoder that predicts the next token at every position (Radford et al. 2019, section 2.3).

    It takes token numbers `[B, T]`, T at most T_max, and returns logits `[B, T, V]`. To go on from tokens that it has
    read, it takes their keys and values, `past`, and returns those of all tokens beside the logits.

    `tied`: the output matrix is the embedding matrix (Press and Wolf 2017). `mask` is "causal", or "bidirectional",
    with every token open to all others (Devlin et al. 2019): such a model can't predict the next token. `single`: each
    attention has one head as wide as the model and no biases, whatever h is (note 000).
    """

    def __init__(
        self,
        *,
        V: int,
        T_max: int,
        D: int,
        h: int,
        d_ff: int,
        L: int,
        bias=True,
        tied=True,
        gelu="exact",
        mask="causal",
        single=False,
    ):
        super().__init__()
        self.mask = mask
        self.tokens = nn.Embedding(V, D)
        self.positions = nn.Parameter(torch.randn(T_max, D) * 0.02)
        self.blocks = add_blocks(
            self, L, lambda: Block(D=D, h=h, d_ff=d_ff, bias=bias, gelu=gelu, eps=1e-5, single=single)
        )
        self.norm = nn.LayerNorm(D, eps=1e-5, bias=bias)
        self.head = None if tied else nn.Linear(D, V, bias=bias)
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens, past: Past | None = None) -> torch.Tensor | tuple[torch.Tensor, Past]:
        T_past, T = past_length(past), tokens.shape[1]
        if len(self.positions) < T_past + T:
            raise ValueError(
                f"T={T_past + T} tokens are too many: the position table has T_max={len(self.positions)} rows"
            )
        mask = causal(T, T_past, device=tokens.device) if self.mask == "causal" else None  # [T, T_past+T]
        x = self.tokens(tokens)  # [B, T, D]
        x = x + self.positions[T_past : T_past + T]  # [B, T, D]
        caches = open_caches(past, self.blocks)
        for name, cache in zip(self.blocks, caches, strict=True):
            x = self.get_submodule(name)(x, mask, cache)  # [B, T, D]
        x = self.norm(x)  # [B, T, D]
        logits = F.linear(x, self.tokens.weight) if self.head is None else self.head(x)  # [B, T, V]
        return logits if past is None else (logits, tuple(cache.pair for cache in caches))


HINTS = (
    Hint(
        "mask",
        why=WHY["no look ahead"],
    ),
    embedding_hint(FROM_0),
    Hint(
        "position",
        why=(
            WHY["position"][0],
            positions("so that they can depend on positions, too. Only the first T rows of the table are used."),
        ),
        note=LONGER_TABLE_CLAIMS,
    ),
    Hint(
        "*.scores",
        role="masked S",
        note=Claim(
            "Note 000 has one head, as wide as D, and divides by √D; each of the h heads here is d_k wide.",
            so.several_heads,
        ),
    ),
    Hint("*.attention.context", note="Note 000 calls this H, a letter that its part II also has for the height."),
    Hint("*.mlp.output", note="Note 000 calls this M, like the mask."),
    Hint(
        "*.scores",
        role="S",
        note=Claim(
            "Note 000 adds the causal mask here; none runs, and each token also sees those after it.",
            so.open_to_first,
        ),
    ),
    *logits_hints("Note 000's summary leaves out the bias of the separate head; its section 2 has it."),
)

SHAKESPEARE = "\n !$&',-.3:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
"""The 65 characters of the training text, in order."""

SPEC = Spec(
    decoder=with_cache,
    net=NanoGPT,
    hints=HINTS,
    takes=("text",),
    sizes={"V": 65, "T_max": 128, "D": 128, "h": 4, "d_ff": 512, "L": 4},
    derived={"d_k": "D/h"},
    names=("B", "T", "D", "V", "T_max", "h", "d_k", "d_ff"),
    probes=(
        {"B": 13, "T": 7, "V": 17, "T_max": 11, "D": 10, "h": 2, "d_ff": 23},
        {"B": 3, "T": 5, "V": 29, "T_max": 19, "D": 28, "h": 4, "d_ff": 31},
        {"B": 8, "T": 13, "V": 37, "T_max": 25, "D": 33, "h": 3, "d_ff": 41},
    ),
    example=counted_tokens,
    prepare=text_input(Characters, SHAKESPEARE, "ROMEO:\nMy heart is full of l"),
    result=next_tokens,
    segments=lambda sizes: (Segment("text", 0, sizes["T"]),),
    runs=("B", "T"),
    vocabulary=SHAKESPEARE,
    options={"bias": (True, False), "tied": (True, False), "gelu": ("exact", "tanh")}
    | {"mask": ("causal", "bidirectional"), "single": (False, True)},
    idle=lambda options: ("h", "d_k") if options["single"] else (),
    convert=from_gpt2,
    presets={
        "One head, as in the notes": {"h": 1},
        "One head without biases, as in note 000": {"single": True},
        "GPT-2 small (Radford et al. 2019)": {"V": 50257, "T_max": 1024, "T": 1024, "D": 768, "h": 12, "d_ff": 3072}
        | {"L": 12, "gelu": "tanh"},
        "GPT-3 (Brown et al. 2020)": {"V": 50257, "T_max": 2048, "T": 2048, "D": 12288, "h": 96, "d_ff": 49152}
        | {"L": 96, "gelu": "tanh"},
    },
)
