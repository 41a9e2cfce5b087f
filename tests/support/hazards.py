"""Small models, each named after the property that makes it hard to trace. All sizes are distinct."""

import torch
import torch.nn.functional as F
from torch import nn


class InPlace(nn.Module):
    """A write into a tensor that another op has read, through the tensor and through a view of it."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 3)

    def forward(self, x):
        x = self.first(x)
        x.relu_()
        x[:, 0] = 2.0
        return self.second(x)


class SharedModule(nn.Module):
    """One module under two names."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(5, 5)
        self.decoder = self.encoder

    def forward(self, x):
        return self.decoder(self.encoder(x).tanh())


class CalledTwice(nn.Module):
    """One module that is called twice in one forward."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, x):
        return self.inner(self.inner(x))


class TiedWeights(nn.Module):
    """An embedding matrix that is the output matrix too (Press and Wolf 2017)."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 5)
        self.head = nn.Linear(5, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


class TupleAndDict(nn.Module):
    """A module that takes a dictionary and returns a tuple with a dictionary in it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, batch):
        y = self.linear(batch["x"])
        return y, {"twice": 2 * y, "name": "y"}


class KeywordOnly(nn.Module):
    """A module that takes its tensors by keyword only."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, *, x, scale=1.0):
        return self.linear(x) * scale


class SeveralOutputs(nn.Module):
    """Ops with several outputs, of which a later op reads the second."""

    def forward(self, x):
        low, high = x.chunk(2, dim=-1)
        values, places = high.topk(2, dim=-1)
        return low.sum() + values.sum() + places.sum()


class HalfWay(nn.Module):
    """A module that raises its own error after two ops, inside a child."""

    class Breaking(nn.Module):
        def forward(self, x):
            y = x * 2
            raise KeyError(f"no entry for {tuple(y.shape)}")

    def __init__(self):
        super().__init__()
        self.breaking = self.Breaking()

    def forward(self, x):
        return self.breaking(x + 1)


class Recovers(nn.Module):
    """A module that catches the error of one child and continues with another."""

    def __init__(self):
        super().__init__()
        self.breaking = HalfWay.Breaking()
        self.linear = nn.Linear(5, 3)

    def forward(self, x):
        try:
            return self.breaking(x)
        except KeyError:
            return self.linear(x)


class TracesInside(nn.Module):
    """A module that starts a trace in its own forward."""

    def forward(self, x):
        import tracer

        return tracer.trace(nn.Linear(5, 3), x).output


class Random(nn.Module):
    """A module that draws random numbers, in training and in evaluation."""

    def forward(self, x):
        return F.dropout(x, 0.5, training=True) + torch.rand_like(x)


class WritesBuffer(nn.Module):
    """A module that counts its calls in a buffer, and keeps running statistics while training."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x):
        self.calls += 1
        return self.norm(x)


class FusedAttention(nn.Module):
    """Attention in the fused kernel, with a mask of every kind."""

    def __init__(self, mask="none", D=12, h=3, layers=1):
        super().__init__()
        self.mask, self.h = mask, h
        for layer in range(layers):
            self.add_module(f"packed{layer}", nn.Linear(D, 3 * D))
        self.layers = layers

    def forward(self, x):
        _, S, D = x.shape
        for layer in range(self.layers):
            packed = self.get_submodule(f"packed{layer}")(x).unflatten(-1, (3, self.h, D // self.h))
            q, k, v = packed.permute(2, 0, 3, 1, 4)
            x = F.scaled_dot_product_attention(q, k, v, **self.masks(S)).transpose(1, 2).flatten(2)
        return x

    def masks(self, S):
        lower = torch.ones(S, S, dtype=torch.bool).tril()
        prefix = lower | (torch.arange(S) < 2)
        return {
            "none": {},
            "causal": {"is_causal": True},
            "boolean": {"attn_mask": lower},
            "additive": {"attn_mask": torch.zeros(S, S).masked_fill(~lower, float("-inf"))},
            "prefix": {"attn_mask": prefix},
        }[self.mask]


class ExplicitAttention(FusedAttention):
    """Attention written out, with the same maps as the fused kernel."""

    def forward(self, x):
        _, S, D = x.shape
        for layer in range(self.layers):
            packed = self.get_submodule(f"packed{layer}")(x).unflatten(-1, (3, self.h, D // self.h))
            q, k, v = packed.permute(2, 0, 3, 1, 4)
            scores = q @ k.transpose(-2, -1) * (D // self.h) ** -0.5
            given = self.masks(S)
            mask = torch.ones(S, S, dtype=torch.bool).tril() if "is_causal" in given else given.get("attn_mask")
            if mask is not None and mask.dtype == torch.bool:
                scores = scores.masked_fill(~mask, float("-inf"))
            elif mask is not None:
                scores = scores + mask
            x = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return x
