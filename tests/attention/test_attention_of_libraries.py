"""Attention of models of libraries, at tiny sizes: heads, masks, layers, and attention that is not over tokens."""

import pytest
import torch
from torch import nn

import tracer
from tests.support.first_values import FirstValues
from tests.support.sweeping import cases
from tracer.attention.masks import kind, visible
from tracer.zoo import timm_models as of_timm
from tracer.zoo import torchvision_models as of_torchvision
from tracer.zoo.hf import hub as of_transformers

RAN = FirstValues()
"""Attention weights that modules computed."""
PHOTO = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def torchvision(name, module="swin_transformer"):
    of_torchvision.import_torchvision()
    from importlib import import_module

    return getattr(import_module(f"torchvision.models.{module}"), name)


def swin():
    return torchvision("SwinTransformer")([4, 4], 16, [2, 2], [2, 4], [4, 4], num_classes=5), PHOTO[..., :32, :32]


def swin_v2():
    block, merging = torchvision("SwinTransformerBlockV2"), torchvision("PatchMergingV2")
    made = torchvision("SwinTransformer")(
        [4, 4], 16, [2], [2], [4, 4], num_classes=5, block=block, downsample_layer=merging
    )
    return made, PHOTO[..., :32, :32]


def swin_3d():
    made = torchvision("SwinTransformer3d", "video.swin_transformer")([2, 4, 4], 16, [2], [2], [2, 4, 4], num_classes=5)
    return made, PHOTO[:, :, None, :32, :32].expand(-1, -1, 8, -1, -1)


def timm(name, **sizes):
    return lambda: (of_timm.import_timm().create_model(name, **sizes, num_classes=3), PHOTO)


def nest():
    of_timm.import_timm()
    from timm.models.nest import Nest

    return Nest(64, patch_size=4, num_levels=2, embed_dims=(16, 32), num_heads=(2, 4), depths=(1, 1)), PHOTO


def transformers(name, config, **more):
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}

    def build():
        library = of_transformers.import_transformers()
        given = {**small, "vocab_size": 60, "pad_token_id": 0, **more}
        settings = getattr(library, config)(**given)
        settings.use_cache = False
        return getattr(library, name)._from_config(settings, attn_implementation="eager"), torch.arange(64)[None] % 60

    return build


STAGES = {"embed_dims": (16, 32, 64, 64), "num_heads": (2, 2, 4, 4), "depths": (2, 1, 1, 1), "img_size": 64}
WINDOWS = {"img_size": 64, "window_size": 4, "embed_dim": 16, "depths": (2,), "num_heads": (2,)}
CLASSIFIER_SIZES = {"img_size": 64, "embed_dim": 16, "depth": 1, "num_heads": 4}
SPARSE = {"block_size": 4, "num_random_blocks": 1, "attention_type": "block_sparse", "max_position_embeddings": 64}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "max_position_embeddings": 64, "sliding_window": 8}

EXPECTED_ATTENTION = {
    # of each layer: heads, queries, keys, mask
    "swin": (swin, [(2, 16, 16, "none"), (2, 16, 16, "windows"), (4, 16, 16, "none"), (4, 16, 16, "none")]),
    "swin_v2": (swin_v2, [(2, 16, 16, "none"), (2, 16, 16, "windows")]),
    "swin_3d": (swin_3d, [(2, 32, 32, "none"), (2, 32, 32, "windows")]),
    "timm swin": (timm("swin_tiny_patch4_window7_224", **WINDOWS), [(2, 16, 16, "none"), (2, 16, 16, "windows")]),
    "twins": (
        timm("twins_svt_small", **STAGES),
        [(2, 49, 49, "none"), (2, 256, 4, "none"), (2, 49, 49, "none"), (4, 49, 49, "none"), (4, 49, 49, "none")],
    ),
    "hiera": (
        timm("hiera_tiny_224", img_size=64, embed_dim=16, stages=(1, 1), q_pool=1),
        [(1, 64, 64, "none"), (2, 16, 64, "none")],
    ),
    "nest": (nest, [(2, 64, 64, "none"), (4, 64, 64, "none")]),
    "cait": (timm("cait_xxs24_224", **CLASSIFIER_SIZES), [(4, 16, 16, "none"), (4, 1, 17, "none"), (4, 1, 17, "none")]),
    "gpt_oss": (
        transformers("GptOssForCausalLM", "GptOssConfig", num_key_value_heads=2, head_dim=16, **EXPERTS),
        [(4, 64, 64, "given"), (4, 64, 64, "causal")],
    ),
}


def trace_net(made):
    torch.manual_seed(0)
    net, x = made()
    with torch.no_grad():
        return tracer.trace(net.eval(), x, prove=False)


@pytest.mark.parametrize("name", cases(EXPECTED_ATTENTION, ("swin", "gpt_oss", "cait")))
def test_heads_queries_keys_and_masks_are_those_of_the_model_and_a_file_has_them_too(name, tmp_path):
    made, expected = EXPECTED_ATTENTION[name]
    trace = trace_net(made)
    assert [record.problem for record in trace.attentions] == [""] * len(expected)
    assert [(r.heads, r.queries, r.keys, r.mask) for r in trace.attentions] == expected
    assert {record.over for record in trace.attentions} == {"tokens"}
    trace.save(tmp_path / "a.safetensors")
    opened = tracer.open(tmp_path / "a.safetensors")
    for layer, (heads, queries, keys, _) in enumerate(expected):
        weights = opened.attention(layer)
        assert weights.shape[1:] == (heads, queries, keys) and torch.equal(weights, trace.attention(layer))


def test_shifted_windows_are_the_mask_that_the_weights_show():
    trace = trace_net(swin)
    shown = [visible(trace, 1, batch=window) for window in range(4)]
    assert [kind(cells) for cells in shown] == ["bidirectional", "windows", "windows", "windows"]
    row, column = (
        torch.arange(16) // 4,
        torch.arange(16) % 4,
    )  # the window in the corner holds four corners of the photo
    corner = (row // 2) * 2 + column // 2
    assert torch.equal(shown[3], corner[:, None] == corner)
    assert trace.attention(1)[3, :, ~shown[3]].max() < 1e-40


def test_attention_of_channels_is_not_of_tokens():
    trace = trace_net(timm("xcit_nano_12_p16_224", img_size=64, embed_dim=16, depth=1, num_heads=4))
    assert [(r.over, r.heads, r.queries, r.keys) for r in trace.attentions] == [
        ("channels", 4, 4, 4),
        ("tokens", 4, 1, 17),
        ("tokens", 4, 1, 17),
    ]


def test_a_row_with_a_sink_sums_to_less_than_one():
    trace = trace_net(EXPECTED_ATTENTION["gpt_oss"][0])
    sums = trace.attention(0).sum(-1)
    assert sums.max() < 1 - 1e-3 and sums.min() > 0
    assert kind(visible(trace, 1)) == "causal" and visible(trace, 0).sum(-1).max() == 8


def test_block_sparse_attention_is_one_layer_and_says_why_it_is_lost():
    trace = trace_net(transformers("BigBirdModel", "BigBirdConfig", **SPARSE))
    assert [record.layer for record in trace.attentions] == [0, 1]
    assert all("ran in 5 pieces" in record.problem for record in trace.attentions)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_eight_frames_that_see_only_themselves_are_one_layer_of_windows(attention):
    of_transformers.import_transformers()
    from transformers.models.qwen2_vl import modeling_qwen2_vl as library

    sizes = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2}
    config = library.Qwen2VLVisionConfig(**sizes, patch_size=2, spatial_merge_size=2, temporal_patch_size=1)
    net = library.Qwen2VisionTransformerPretrainedModel._from_config(config, attn_implementation=attention)
    with torch.no_grad():
        trace = tracer.trace(net.eval(), torch.randn(32, 12), torch.tensor([[8, 2, 2]]))
    assert [(r.layer, r.heads, r.queries, r.mask, r.problem) for r in trace.attentions] == [
        (0, 4, 32, "windows", ""),
        (1, 4, 32, "windows", ""),
    ]
    frame = torch.arange(32) // 4
    assert torch.equal(visible(trace), frame[:, None] == frame)
    assert (trace.attention(0).sum(-1) - 1).abs().max() < 1e-6


class Differential(nn.Module):
    """Difference of two softmaxes, applied to the values (Ye et al. 2024)."""

    def __init__(self):
        super().__init__()
        self.packed, self.share = nn.Linear(16, 80), nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        q, k, r, m, v = self.packed(x).unflatten(-1, (5, 4, 4)).permute(2, 0, 3, 1, 4)
        one, two = (q @ k.mT).softmax(-1), (r @ m.mT).softmax(-1)
        RAN.put(self, (one, two))
        return (one - self.share * two) @ v


def test_both_softmaxes_of_a_difference_are_heads_of_one_layer():
    net = Differential()
    trace = tracer.trace(net, torch.randn(2, 7, 16))
    assert [(r.layer, r.heads, r.problem) for r in trace.attentions] == [(0, 8, "")]
    assert "sub" in trace.attentions[0].after
    assert torch.allclose(trace.attention(0), torch.cat(RAN.of(net), 1), atol=1e-6)


def test_a_softmax_over_learned_scores_beside_another_is_listed_on_its_own():
    """ConViT adds attention by place, which has no queries and keys, to that by content."""
    trace = trace_net(timm("convit_tiny", img_size=64, embed_dim=16, depth=2, num_heads=4, local_up_to_layer=1))
    found = [(r.heads, r.queries, "not be followed" in r.problem) for r in trace.attentions]
    assert sorted(found) == [(4, 16, False), (4, 16, True), (4, 17, False)]


class Head(nn.Module):
    """One head, as a module of its own."""

    def __init__(self):
        super().__init__()
        self.key, self.query, self.value = (nn.Linear(16, 2, bias=False) for _ in range(3))
        self.register_buffer("lower", torch.ones(7, 7).tril())

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT * 2**-0.5
        weights = scores.masked_fill(self.lower == 0, float("-inf")).softmax(-1)
        RAN.put(self, weights)
        return weights @ self.value(x)


class EightHeads(nn.Module):
    """Eight heads, one after the other."""

    def __init__(self):
        super().__init__()
        self.heads, self.project = nn.ModuleList(Head() for _ in range(8)), nn.Linear(16, 16)

    def forward(self, x):
        return x + self.project(torch.cat([head(x) for head in self.heads], -1))


def test_eight_heads_that_are_modules_of_their_own_are_one_layer():
    net = nn.Sequential(EightHeads(), EightHeads())
    trace = tracer.trace(net, torch.randn(2, 7, 16))
    assert [(r.layer, r.heads, r.mask, r.problem) for r in trace.attentions] == [
        (0, 8, "causal", ""),
        (1, 8, "causal", ""),
    ]
    for layer, block in enumerate(net):
        ran = torch.stack([RAN.of(head) for head in block.heads], 1)
        assert torch.allclose(trace.attention(layer), ran, atol=1e-6)


class InPieces(nn.Module):
    """Attention of stretches of the sequence; the stretches are `sizes` long."""

    def __init__(self, sizes, alone):
        super().__init__()
        self.packed, self.sizes, self.alone = nn.Linear(16, 48), sizes, alone

    def forward(self, x):
        q, k, v = self.packed(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        parts = zip(*(y.split(self.sizes, 2) for y in (q, k, v)), strict=True)
        return torch.cat([self.attend(a, b, c) if self.alone else self.attend(a, k, v) for a, b, c in parts], 2)

    @staticmethod
    def attend(q, k, v):
        return (q @ k.mT / 2).softmax(-1) @ v


class Sliced(nn.Module):
    """Attention of two heads at a time, folded into the batch, written into their slices."""

    def __init__(self):
        super().__init__()
        self.packed = nn.Linear(16, 48)

    def forward(self, x):
        q, k, v = (y.flatten(0, 1) for y in self.packed(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4))
        out = torch.zeros_like(q)
        for i in range(0, len(q), 2):
            out[i : i + 2] = (q[i : i + 2] @ k[i : i + 2].mT / 2).softmax(-1) @ v[i : i + 2]
        return out


def test_slices_of_heads_that_are_written_into_their_places_are_one_layer():
    net, x = Sliced(), torch.randn(4, 7, 16)
    trace = tracer.trace(net, x)
    assert [(r.layer, r.heads, r.queries, r.problem) for r in trace.attentions] == [(0, 4, 7, "")]
    q, k, _ = net.packed(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
    assert torch.allclose(trace.attention(0), (q @ k.mT / 2).softmax(-1), atol=1e-6)


@pytest.mark.parametrize(("alone", "mask"), [(False, "none"), (True, "windows")])
def test_stretches_of_queries_are_one_layer(alone, mask):
    net, x = InPieces([3, 2, 2], alone), torch.randn(2, 7, 16)
    trace = tracer.trace(net, x)
    assert [(r.heads, r.queries, r.keys, r.mask, r.problem) for r in trace.attentions] == [(4, 7, 7, mask, "")]
    q, k, _ = net.packed(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
    piece = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    closed = (piece[:, None] != piece) & alone
    assert torch.equal(visible(trace), ~closed) and kind(visible(trace)) == {"none": "bidirectional"}.get(mask, mask)
    expected = (q @ k.mT / 2).masked_fill(closed, float("-inf")).softmax(-1)
    assert torch.allclose(trace.attention(0), expected, atol=1e-6)
