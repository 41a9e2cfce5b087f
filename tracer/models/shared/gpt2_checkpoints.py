"""Checkpoints in the GPT-2 layout, as nanoGPT, minGPT and transformers write them, in the names of our `nanogpt`.

The layout: `transformer.wte`, `.wpe`, `.h.0.ln_1`, `.h.0.attn.c_attn` (queries, keys and values in one matrix),
`.h.0.attn.c_proj`, `.h.0.ln_2`, `.h.0.mlp.c_fc`, `.h.0.mlp.c_proj`, `.ln_f`, and `lm_head`. Matrices are [out, in]
(`nn.Linear`: nanoGPT, minGPT) or [in, out] (`Conv1D`: OpenAI, transformers), which the shape of `c_attn` tells.
"""

from __future__ import annotations

import re

import torch

from tracer.utils.error_text import quote

WRAPPER_PREFIX = re.compile(r"^(_orig_mod\.|module\.)*(transformer\.)?")
MASKS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
"""Causal masks that some checkpoints hold as buffers; ours is computed in the run."""

NORMS = {"norm1": "ln_1", "norm2": "ln_2"}
LINEARS = {"attention.output": "attn.c_proj", "mlp.expand": "mlp.c_fc", "mlp.contract": "mlp.c_proj"}
PACKED_LAYERS = ("attention.query", "attention.key", "attention.value")


def from_gpt2(tensors: dict[str, torch.Tensor], config: dict) -> tuple[dict[str, torch.Tensor], dict] | None:
    """Return the tensors in our names, and their sizes and options; None for tensors in another layout.

    `config` is the caller's choice: the layout does not contain the number of heads (`h`) nor the GELU (`gelu`). Raise
    ValueError, to follow "the weights don't fit:", if these or tensors are missing, and for wrong shapes.
    """
    left = {WRAPPER_PREFIX.sub("", name): tensor for name, tensor in tensors.items()}
    if "wte.weight" not in left or not any(name.startswith("h.") for name in left):
        return None
    lacking = [name for name in ("h", "gelu") if name not in config]
    if lacking:
        choose = {"h": "h=… for the heads", "gelu": "gelu='exact' or gelu='tanh'"}
        raise ValueError(f"the file does not say all, give {' and '.join(choose[name] for name in lacking)}")
    left = {name: tensor for name, tensor in left.items() if not MASKS.fullmatch(name)}

    def take(name: str, axes: int) -> torch.Tensor:
        if name not in left:
            raise ValueError(f"they lack {quote(name)} of the GPT-2 layout")
        if left[name].dim() != axes:
            raise ValueError(
                f"{quote(name)} is {list(left[name].shape)}, expected {axes} {'axes' if axes > 1 else 'axis'}"
            )
        return left.pop(name)

    converted = {"tokens.weight": take("wte.weight", 2), "positions": take("wpe.weight", 2)}
    (V, D), T_max = converted["tokens.weight"].shape, len(converted["positions"])
    packed = left.get("h.0.attn.c_attn.weight", torch.empty(0))
    if tuple(packed.shape) not in ((3 * D, D), (D, 3 * D)):
        expected = f"[{3 * D}, {D}] or [{D}, {3 * D}]"
        raise ValueError(f"'h.0.attn.c_attn.weight' is {list(packed.shape)}, expected {expected}")
    is_linear, bias = packed.shape[0] == D, "h.0.attn.c_attn.bias" in left
    L = len({name.split(".")[1] for name in left if name.startswith("h.")})
    parts = ("weight", "bias") if bias else ("weight",)

    def matrix(name: str, part: str) -> torch.Tensor:
        tensor = take(f"{name}.{part}", 2 if part == "weight" else 1)
        return tensor.t() if is_linear and part == "weight" else tensor

    for layer in range(L):
        for part in parts:
            ours, theirs = f"block{layer + 1}", f"h.{layer}"
            for name, gpt2_name in NORMS.items():
                converted[f"{ours}.{name}.{part}"] = take(f"{theirs}.{gpt2_name}.{part}", 1)
            for name, tensor in zip(PACKED_LAYERS, matrix(f"{theirs}.attn.c_attn", part).tensor_split(3), strict=True):
                converted[f"{ours}.{name}.{part}"] = tensor
            for name, gpt2_name in LINEARS.items():
                converted[f"{ours}.{name}.{part}"] = matrix(f"{theirs}.{gpt2_name}", part)
    converted |= {f"norm.{part}": take(f"ln_f.{part}", 1) for part in parts}
    head = left.pop("lm_head.weight", converted["tokens.weight"])
    tied = torch.equal(head, converted["tokens.weight"])
    if not tied:
        converted["head.weight"] = head
        if bias:  # ours has one wherever the blocks have; theirs never has
            converted["head.bias"] = left.pop("lm_head.bias", torch.zeros(V))
    if left:
        raise ValueError(f"they also hold {quote(next(iter(left)))}, which is not of the GPT-2 layout")
    d_ff = len(converted["block1.mlp.expand.weight"])
    return converted, {"V": V, "T_max": T_max, "D": D, "d_ff": d_ff, "L": L, "bias": bias, "tied": tied}
