"""A pre-norm transformer block by hand, with `torch.nn.functional`, which models are compared with."""

import torch
import torch.nn.functional as F


def plain_block(
    x: torch.Tensor, weights: dict[str, torch.Tensor], block: str, heads: int, causal: bool = False, eps: float = 1e-6
) -> torch.Tensor:
    """Return the output `[B, S, D]` of the block of that name, such as `"encoder.block1"`, from its own weights."""

    def linear(x, name):
        return F.linear(x, weights[f"{block}.{name}.weight"], weights[f"{block}.{name}.bias"])

    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], weights[f"{block}.{name}.weight"], weights[f"{block}.{name}.bias"], eps)

    normed = norm(x, "norm1")
    q, k, v = (
        linear(normed, f"attention.{name}").unflatten(2, (heads, -1)).transpose(1, 2)
        for name in ("query", "key", "value")
    )
    context = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    x = x + linear(context.transpose(1, 2).flatten(2), "attention.output")
    return x + linear(F.gelu(linear(norm(x, "norm2"), "mlp.expand")), "mlp.contract")
