"""Twins of the modules in `failing`, whose forward runs."""

import torch
import torch.nn.functional as F
from torch import nn


class Product(nn.Module):
    """Keys that were not transposed."""

    def __init__(self, D, h):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)
        self.h = h

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (f(x).view(B, T, self.h, D // self.h).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1)
        y = scores.softmax(-1) @ v
        return y.transpose(1, 2).reshape(B, T, D)


def product(B=2, T=5, D=8, h=2):
    return Product(D, h), torch.randn(B, T, D)


class Hidden(nn.Module):
    """Two layers whose sizes do not meet."""

    def __init__(self, D):
        super().__init__()
        self.up = nn.Linear(D, 3 * D)
        self.down = nn.Linear(3 * D, D)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def hidden_layers(B=2, T=5, D=8):
    return Hidden(D), torch.randn(B, T, D)


class Classifier(nn.Module):
    """A picture that was not flattened before the last layer."""

    def __init__(self, C, K):
        super().__init__()
        self.conv = nn.Conv2d(3, C, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(4 * C, K)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv(x)))
        return self.head(x.flatten(1))


def classifier(B=2, C=6, K=10):
    return Classifier(C, K), torch.randn(B, 3, 8, 9)


class Channels(nn.Module):
    """A convolution that expects other channels than it gets."""

    def __init__(self, C):
        super().__init__()
        self.first = nn.Conv2d(3, C, 3)
        self.second = nn.Conv2d(C, C, 3)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.second(x)


def channels(B=2, C=7, H=9, W=11):
    return Channels(C), torch.randn(B, 3, H, W)


class ChannelsLast(nn.Module):
    """A picture whose channels are the last axis."""

    def __init__(self, D):
        super().__init__()
        self.patches = nn.Conv2d(3, D, 4, stride=4)

    def forward(self, picture):
        x = self.patches(picture.permute(0, 3, 1, 2))
        return x.flatten(2).transpose(1, 2)


def channels_last(B=2, D=8, H=8, W=12):
    return ChannelsLast(D), torch.randn(B, H, W, 3)


class ClassToken(nn.Module):
    """A class token without the batch."""

    def __init__(self, D):
        super().__init__()
        self.cls = nn.Parameter(torch.zeros(1, 1, D))

    def forward(self, x):
        return torch.cat([self.cls.expand(x.size(0), -1, -1), x], dim=1)


def class_token(B=2, T=5, D=8):
    return ClassToken(D), torch.randn(B, T, D)


class Joined(nn.Module):
    """Two streams that are joined along the wrong axis."""

    def __init__(self, D):
        super().__init__()
        self.wide, self.narrow = nn.Linear(D, D), nn.Linear(D, D // 2)

    def forward(self, x):
        return torch.cat([self.wide(x), self.narrow(x)], dim=-1)


def axis_join(B=2, T=5, D=8):
    return Joined(D), torch.randn(B, T, D)


class Stacked(nn.Module):
    """Tensors of two lengths that are stacked."""

    def forward(self, x, y):
        return torch.cat([x, y], dim=1)


def sequence_stack(B=2, T=5, S=3, D=8):
    return Stacked(), (torch.randn(B, T, D), torch.randn(B, S, D))


class Positions(nn.Module):
    """Learned positions of the longest text, added to a shorter one."""

    def __init__(self, D, longest):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1, longest, D))

    def forward(self, x):
        return x + self.table[:, : x.size(1)]


def positions(B=2, T=5, D=8):
    return Positions(D, 64), torch.randn(B, T, D)


class Scaled(nn.Module):
    """One number for each sample, which has to get the axes of the tensor."""

    def forward(self, x, weight):
        return x * weight[:, None, None]


def sample_weight(B=2, T=5, D=8):
    return Scaled(), (torch.randn(B, T, D), torch.randn(B, 1))


class Merged(nn.Module):
    """Heads that are viewed after a transpose."""

    def __init__(self, h):
        super().__init__()
        self.h = h

    def forward(self, x):
        B, T, D = x.shape
        heads = x.view(B, T, self.h, D // self.h).transpose(1, 2)
        return heads.transpose(1, 2).reshape(B, T, D)


def head_merge(B=2, T=5, D=8, h=2):
    return Merged(h), torch.randn(B, T, D)


class Flattened(nn.Module):
    """A view with a size that does not divide."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        x = self.conv(x)
        return x.view(x.size(0), -1)


def flat_picture(B=2, H=9, W=7):
    return Flattened(), torch.randn(B, 3, H, W)


class Tokens(nn.Module):
    """A table with fewer rows than the ids need."""

    def __init__(self, V, D):
        super().__init__()
        self.table = nn.Embedding(V, D)

    def forward(self, ids):
        return self.table(ids)


def tokens(B=2, V=12, D=8):
    return Tokens(V, D), torch.arange(V).repeat(B, 1)


class Masked(nn.Module):
    """A padding mask without the axes of heads and queries."""

    def __init__(self, D, h):
        super().__init__()
        self.qkv, self.h = nn.Linear(D, 3 * D), h

    def forward(self, x, keep):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
        return y.transpose(1, 2).reshape(B, T, D)


def padding_mask(B=2, T=5, D=8, h=2):
    return Masked(D, h), (torch.randn(B, T, D), torch.ones(B, T, dtype=torch.bool))


class Precision(nn.Module):
    """An input of another dtype than the weights."""

    def __init__(self, D):
        super().__init__()
        self.proj = nn.Linear(D, D)

    def forward(self, x):
        return self.proj(x.float())


def precision(B=2, D=8):
    return Precision(D), torch.randn(B, D, dtype=torch.float64)


class BatchFirst(nn.Module):
    """Attention that takes the batch along another axis than the mask."""

    def __init__(self, D, h):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, h, batch_first=True)

    def forward(self, x, padding):
        return self.attention(x, x, x, key_padding_mask=padding)[0]


def batch_first(B=2, T=5, D=8, h=2):
    return BatchFirst(D, h), (torch.randn(B, T, D), torch.zeros(B, T, dtype=torch.bool))


class Loss(nn.Module):
    """Scores of words whose classes are not on axis 1."""

    def __init__(self, D, V):
        super().__init__()
        self.head = nn.Linear(D, V)

    def forward(self, x, target):
        scores = self.head(x)
        return F.cross_entropy(scores.transpose(1, 2), target)


def loss(B=2, T=5, D=8, V=11):
    return Loss(D, V), (torch.randn(B, T, D), torch.randint(V, (B, T)))


class Binary(nn.Module):
    """Targets that are whole numbers, for a loss of probabilities."""

    def __init__(self, D):
        super().__init__()
        self.head = nn.Linear(D, 1)

    def forward(self, x, target):
        return F.binary_cross_entropy_with_logits(self.head(x).squeeze(-1), target.float())


def binary(B=4, D=8):
    return Binary(D), (torch.randn(B, D), torch.randint(2, (B,)))


class Letters(nn.Module):
    """Letters of `einsum` in the wrong order."""

    def forward(self, q, k):
        return torch.einsum("bhqd,bhkd->bhqk", q, k)


def letters(B=2, h=3, T=5, S=7, d=4):
    return Letters(), (torch.randn(B, h, T, d), torch.randn(B, h, S, d))


class Norm(nn.Module):
    """A norm of another size than its input."""

    def __init__(self, D):
        super().__init__()
        self.up = nn.Linear(D, 2 * D)
        self.norm = nn.LayerNorm(2 * D)

    def forward(self, x):
        return self.norm(self.up(x))


def norm(B=2, T=5, D=8):
    return Norm(D), torch.randn(B, T, D)


class BatchNorm(nn.Module):
    """A norm over channels that are the last axis."""

    def __init__(self, D):
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def forward(self, x):
        return self.norm(x.transpose(1, 2))


def batch_norm(B=2, T=5, D=8):
    return BatchNorm(D), torch.randn(B, T, D)


class Last(nn.Module):
    """Index of the last position, counted from 1."""

    def forward(self, x):
        n = x.size(1)
        return x[:, n - 1]


def last(B=2, T=5, D=8):
    return Last(), torch.randn(B, T, D)


class Pair(nn.Module):
    """A recurrent layer, which returns two values."""

    def __init__(self, D):
        super().__init__()
        self.rnn, self.head = nn.GRU(D, D, batch_first=True), nn.Linear(D, 3)

    def forward(self, x):
        states = self.rnn(x)[0]
        return self.head(states)


def pair(B=2, T=5, D=8):
    return Pair(D), torch.randn(B, T, D)


class Misspelled(nn.Module):
    """A layer by a name that it does not have."""

    def __init__(self, D):
        super().__init__()
        self.projection = nn.Linear(D, D)

    def forward(self, x):
        return self.projection(x)


def attribute_typo(B=2, D=8):
    return Misspelled(D), torch.randn(B, D)


class Silent(nn.Module):
    """A block that returns nothing."""

    def __init__(self, D):
        super().__init__()
        self.proj = nn.Linear(D, D)

    def forward(self, x):
        return x + self.proj(x)


class Returned(nn.Module):
    """Two of them in a row."""

    def __init__(self, D):
        super().__init__()
        self.one, self.two = Silent(D), Silent(D)

    def forward(self, x):
        y = self.one(x)
        return self.two(y).mean(-1)


def return_value(B=2, T=5, D=8):
    return Returned(D), torch.randn(B, T, D)


class Mixed(nn.Module):
    """A block that needs a mask and gets none."""

    def __init__(self, D):
        super().__init__()
        self.proj = nn.Linear(D, D)

    def forward(self, x, mask):
        return self.proj(x) if mask is None else self.proj(x) * mask


class Missing(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.block = Mixed(D)

    def forward(self, x):
        return self.block(x, mask=None)


def missing(B=2, T=5, D=8):
    return Missing(D), torch.randn(B, T, D)


class Placed(nn.Module):
    """A mask that was built on another device."""

    def forward(self, x):
        closed = torch.ones(x.size(1), x.size(1), device=x.device).triu(1)
        return x + closed


def device_choice(B=2, T=5):
    return Placed(), torch.randn(B, T, T)
