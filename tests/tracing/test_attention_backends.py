"""One attention on every path: the same numbers, and the ops of each path."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from tracer.tracing import attention_backends

FAST = "_native_multi_head_attention"


class Blocks(nn.Module):
    """Two attentions, of which the second reads the result of the first."""

    def __init__(self, **options):
        super().__init__()
        self.first = nn.MultiheadAttention(12, 2, batch_first=True, **options)
        self.second = nn.MultiheadAttention(12, 4, batch_first=True, **options)

    def forward(self, x):
        x = self.first(x, x, x, need_weights=False)[0]
        return self.second(x, x, x, need_weights=False)[0]


class Masked(nn.Module):
    """Attention with a mask of one kind."""

    def __init__(self, **masks):
        super().__init__()
        self.attention, self.masks = nn.MultiheadAttention(12, 2, batch_first=True), masks

    def forward(self, x):
        return self.attention(x, x, x, **self.masks)[0]


def names(comparison, way: str) -> list[str]:
    (found,) = [one for one in comparison.ways if one.name == way]
    return [op.op for op in found.ops]


def test_every_way_gives_the_same():
    found = attention_backends.compare(Blocks().eval(), torch.randn(3, 5, 12))
    assert found.module == "first" and [way.name for way in found.ways] == list(attention_backends.WAYS)
    assert [(way.need_weights, way.fast) for way in found.ways] == list(attention_backends.WAYS.values())
    for table in (found.outputs, found.weights):
        assert len(table) == 4 and all(len(line) == 4 for line in table)
        assert all(error is None or error <= 1e-5 for line in table for error in line)
        assert [table[i][i] for i in range(3)] == [0, 0, 0]
    assert [line[3] for line in found.weights] == [None] * 4


def test_what_each_way_runs():
    found = attention_backends.compare(Blocks().eval(), torch.randn(3, 5, 12))
    assert names(found, "fast") == names(found, "fast with weights") == [FAST]
    assert names(found, "standard").count("bmm") == 2 and "_softmax" in names(found, "standard")
    assert sum("scaled_dot_product" in name for name in names(found, "fused")) == 1
    assert "bmm" not in names(found, "fused")
    (fast,) = next(way for way in found.ways if way.name == "fast").ops
    assert fast.inputs[0].shape == (3, 5, 12) and fast.inputs[0].maker == "input query"
    assert {"in_proj_weight", "out_proj.bias"} <= {tensor.maker for tensor in fast.inputs}


@pytest.mark.parametrize("batch", [1, 3])
def test_shapes_are_solved(batch):
    found = attention_backends.compare(Blocks().eval(), torch.randn(batch, 5, 12))
    for way in found.ways[:2]:
        symbolic = {op.op: op.outputs[0].symbolic for op in way.ops}
        assert not any("?" in tensor.symbolic for op in way.ops for tensor in (*op.inputs, *op.outputs))
        if way.name == "standard" and batch > 1:
            assert symbolic["_softmax"] == ("B*h", "S", "S")
        if way.name == "fused":
            assert symbolic["_scaled_dot_product_flash_attention_for_cpu"] == ("B", "h", "S", "d_k")


def test_another_attention_by_its_path():
    net, x = Blocks().eval(), torch.randn(3, 5, 12)
    found = attention_backends.compare(net, x, module="second")
    assert found.module == "second"
    shapes = [op.outputs[0].shape for way in found.ways[:1] for op in way.ops if op.op == "_softmax"]
    assert shapes == [(12, 5, 5)]


@pytest.mark.parametrize(
    "masks",
    [
        {"attn_mask": torch.ones(5, 5, dtype=torch.bool).triu(1)},
        {"attn_mask": nn.Transformer.generate_square_subsequent_mask(5)},
        {"attn_mask": torch.randn(5, 5)},
        {"key_padding_mask": torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]], dtype=torch.bool)},
    ],
    ids=["boolean", "additive", "bias", "padding"],
)
def test_masks_go_along(masks):
    found = attention_backends.compare(Masked(**masks).eval(), torch.randn(2, 5, 12))
    assert max(map(max, found.outputs)) <= 1e-5
    assert max(error for line in found.weights[:3] for error in line[:3]) <= 1e-5
    bias = "attn_mask" in masks and not torch.isin(masks["attn_mask"].float(), torch.tensor([0, 1, -torch.inf])).all()
    assert (FAST in names(found, "fast")) is not bias


def test_where_there_is_no_fast_path_the_ways_are_two():
    """Sequence first, and other keys than queries."""
    net = nn.MultiheadAttention(9, 3).eval()
    found = attention_backends.compare(net, torch.randn(4, 5, 9), torch.randn(6, 5, 9), torch.randn(6, 5, 9))
    assert found.module == "" and names(found, "fast") == names(found, "fused")
    assert found.outputs[0][2] == 0 and found.outputs[0][1] <= 1e-5


def test_nothing_is_left_behind():
    net, x = Blocks().eval(), torch.randn(3, 5, 12)
    before, state = net(x), torch.get_rng_state()
    attention_backends.compare(net, x)
    assert torch.equal(torch.get_rng_state(), state) and torch.is_grad_enabled()
    assert torch.equal(net(x), before) and torch.backends.mha.get_fastpath_enabled()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_many_threads_at_once():
    net = Blocks().eval()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda size: attention_backends.compare(net, torch.randn(2, size, 12)), range(3, 15)))
    for size, one in zip(range(3, 15), found, strict=True):
        assert names(one, "fast") == [FAST] and one.ways[3].ops[0].outputs[0].shape == (2, size, 12)


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (nn.Linear(12, 12), {}, "Linear has no nn.MultiheadAttention"),
        (Blocks(), {}, "training mode"),
        (Blocks().eval(), {"module": "third"}, "module='third' is not an nn.MultiheadAttention of this net"),
        (nn.Sequential(nn.Identity()), {}, "Sequential has no nn.MultiheadAttention"),
    ],
)
def test_refusals_are_sentences(net, options, message):
    with pytest.raises(ValueError, match=message):
        attention_backends.compare(net, torch.randn(2, 5, 12), **options)


def test_an_attention_that_does_not_run_is_named():
    net = Blocks().eval()
    net.forward = lambda x: net.first(x, x, x)[0]
    with pytest.raises(ValueError, match="'second' did not run"):
        attention_backends.compare(net, torch.randn(2, 5, 12), module="second")


def test_only_an_attention_of_pytorch_in_evaluation_can_be_compared():
    net = Blocks()
    assert not attention_backends.comparable(net, "first")
    net.eval()
    assert attention_backends.comparable(net, "first")
    assert not attention_backends.comparable(net, "") and not attention_backends.comparable(net, "nowhere")
