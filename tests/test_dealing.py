"""Where heads come from: the columns of the matrices of queries, keys and values."""

import pytest
import torch

import tracer
from tracer.attention import layers
from tracer.figures import heads


def found(name: str, **sizes: int):
    model = tracer.load(name, **sizes)
    trace = model.trace()
    return model, trace, heads.matrices(trace, layers(trace)[0])


def test_a_head_reads_the_columns_that_have_its_colour():
    model, trace, (query, *_) = found("vit", D=24, h=3, d_ff=8, L=1)
    assert (query.heads, query.shape, query.symbolic, query.turned) == (3, (24, 24), ("D", "D"), True)
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
    _, _, matrices = found(name, **sizes)
    assert [matrix.heads for matrix in matrices] == counts
    assert [matrix.symbol[8:11] for matrix in matrices] == ["W}_"] * 3


def test_the_drawing_has_a_band_for_each_head_twice_and_says_so():
    _, _, (query, *_) = found("vit", D=24, h=3, d_ff=8, L=1)
    drawn = heads.drawing(query)
    assert drawn.count("<rect") == 6 and "PyTorch’s weight" in drawn
    assert heads.describe(query) == "W_Q^(1) [24 × 24]: 3 heads of 8 columns each" and heads.describe(query) in drawn
    assert heads.drawing(query._replace(turned=False)).count("<rect") == 3
