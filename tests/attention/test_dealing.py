"""Origin of heads: the columns of the matrices of queries, keys and values."""

import pytest
import torch

import tracer
from tests.support.sweeping import cases
from tracer.attention import layers
from tracer.figures import attention_maps


def load_matrices(name: str, **sizes: int):
    model = tracer.load(name, **sizes)
    trace = model.trace()
    return model, trace, attention_maps.matrices(trace, layers(trace)[0])


def test_a_head_reads_the_columns_that_have_its_colour():
    model, trace, (query, *_) = load_matrices("vit", D=24, h=3, d_ff=8, L=1)
    assert (query.heads, query.shape, query.symbolic, query.transposed) == (3, (24, 24), ("D", "D"), True)
    weight, each = dict(model.net.named_parameters())["block1.attention.query.weight"], 24 // 3
    assert weight.shape == query.shape[::-1]
    bias = dict(model.net.named_parameters())["block1.attention.query.bias"]
    for head in range(3):
        own = slice(head * each, (head + 1) * each)
        with torch.no_grad():
            made = trace.value("block1.norm1") @ weight.T[:, own] + bias[own]
        assert torch.allclose(made, trace.value("block1.attention.query")[:, head], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "sizes", "counts"),
    [
        ("llama", {"D": 16, "h": 4, "h_kv": 2, "d_ff": 8, "L": 1}, [4, 2, 2]),
        ("vit-note", {"D": 16, "d_k": 4, "d_ff": 8, "H": 32, "W": 32}, [1, 1, 1]),
    ],
)
def test_each_matrix_has_the_heads_of_its_model(name, sizes, counts):
    _, _, matrices = load_matrices(name, **sizes)
    assert [matrix.heads for matrix in matrices] == counts
    assert [matrix.symbol[8:11] for matrix in matrices] == ["W}_"] * 3


def test_the_drawing_has_a_band_for_each_head_twice_and_says_so():
    _, _, (query, *_) = load_matrices("vit", D=24, h=3, d_ff=8, L=1)
    drawn = attention_maps.draw_columns(query)
    assert drawn.count("<rect") == 6 and "PyTorch’s weight" in drawn
    assert (
        attention_maps.describe(query) == "W_Q^(1) [24 × 24]: 3 heads of 8 columns each"
        and attention_maps.describe(query) in drawn
    )
    assert attention_maps.draw_columns(query._replace(transposed=False)).count("<rect") == 3
    assert [drawn.count(f">{head}</text>") for head in range(4)] == [0, 2, 2, 2]  # on screen, heads count from 1


PACKED_WEIGHTS = {
    "hf:gpt2": "transformer.h.0.attn.c_attn.weight",
    "timm:vit_tiny_patch16_224": "blocks.0.attn.qkv.weight",
    "torchvision:vit_b_16": "encoder.layers.encoder_layer_0.self_attention.in_proj_weight",
}


@pytest.mark.parametrize("name", cases(PACKED_WEIGHTS, ()))
def test_a_packed_product_is_three_bands_with_heads_in_each(name):
    model, _, (packed,) = load_matrices(name, **({"L": 1} if name.startswith("torchvision") else {}))
    D, h = packed.shape[0], packed.heads
    assert packed.is_packed and packed.shape == (D, 3 * D) and packed.symbolic == ("D", "3*D")
    assert packed.transposed == (name != "hf:gpt2")
    expected = {(at * D + head * D // h, D // h, head, part) for at, part in enumerate("QKV") for head in range(h)}
    assert set(packed.bands) == expected
    weight = dict(model.net.named_parameters())[PACKED_WEIGHTS[name]]
    assert weight.shape == (packed.shape[::-1] if packed.transposed else packed.shape)
    drawn = attention_maps.draw_columns(packed)
    assert drawn.count("<rect") == 3 * h * (1 + packed.transposed) and drawn.count(">V</text>") == 1 + packed.transposed
    assert f"{h} heads of {D // h} columns each; Q from column 0 on, K from column {D} on" in drawn


@pytest.mark.parametrize("thirds", [True, False])
def test_bands_are_those_whose_numbers_the_heads_received(thirds):
    """Thirds with all heads in each, or head by head with queries, keys and values side by side: they are found where
    they are; and with a head that received other numbers nothing is drawn."""
    net = torch.nn.Sequential(Packed(thirds), Packed(thirds))
    trace = tracer.trace(net, torch.randn(1, 5, 12), symbols={"B": 0, "T": 1})
    (packed,) = attention_maps.matrices(trace, trace.attentions[0])
    by_head = [(part, head) for head in range(3) for part in "QKV"]
    expected = [(part, head) for part in "QKV" for head in range(3)] if thirds else by_head
    assert [(band.part, band.head) for band in sorted(packed.bands)] == expected
    assert attention_maps.draw_columns(packed).count("<rect") == 18 and packed.transposed
    assert [band.start for band in sorted(packed.bands)] == [*range(0, 36, 4)]
    key = next(step for step in trace.steps if step.symbol.startswith(r"\mathbf{K}"))
    trace.values[key.value][0, 1, 0, 0] += 1
    assert attention_maps.matrices(trace, trace.attentions[0]) == []


class Packed(torch.nn.Module):
    """Three heads of width 4 out of one product."""

    def __init__(self, thirds):
        super().__init__()
        self.thirds, self.qkv = thirds, torch.nn.Linear(12, 36)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, 3, 4).permute(*((2, 0, 3) if self.thirds else (3, 0, 2)), 1, 4)
        mixed = (q @ k.transpose(-2, -1) / 2).softmax(-1) @ v
        return mixed.transpose(1, 2).reshape(B, T, D)
