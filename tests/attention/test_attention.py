"""Attention comes from the queries, keys and mask that ran: equal to the explicit softmax, fused or not."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer
from tests.support.hazards import ExplicitAttention, FusedAttention
from tracer.attention import rollout

MASKS = ["none", "causal", "boolean", "additive", "prefix"]


def twins(mask, layers=2):
    torch.manual_seed(0)
    fused, explicit = FusedAttention(mask, layers=layers), ExplicitAttention(mask, layers=layers)
    explicit.load_state_dict(fused.state_dict())
    return fused.eval(), explicit.eval()


def softmax_of(net, x, layer):
    """Return the softmax, computed by hand."""
    for i in range(layer + 1):
        packed = net.get_submodule(f"packed{i}")(x).unflatten(-1, (3, 3, 4))
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / 2
        given = net.masks(x.shape[1])
        mask = torch.ones(scores.shape[-2:]).tril().bool() if "is_causal" in given else given.get("attn_mask")
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
        weights = scores.softmax(-1)
        x = (weights @ v).transpose(1, 2).flatten(2)
    return weights


@pytest.mark.parametrize("mask", MASKS)
def test_fused_and_explicit_attention_give_the_same_maps(mask):
    fused, explicit = twins(mask)
    x = torch.randn(2, 7, 12)
    with torch.no_grad():
        one, other = tracer.trace(fused, x), tracer.trace(explicit, x)
        for layer in range(2):
            expected = softmax_of(fused, x, layer)
            assert (one.attention(layer) - expected).abs().max() < 1e-6
            assert (other.attention(layer) - expected).abs().max() < 1e-6
    assert [r.fused for r in one.attentions] == [True, True] and not other.attentions[0].fused
    named = {"none": "none", "prefix": "given"}.get(mask, "causal")
    assert {record.mask for record in (*one.attentions, *other.attentions)} == {named}


def test_head_and_query_pick_axes_and_rows_sum_to_one():
    fused, _ = twins("prefix")
    trace = tracer.trace(fused, torch.randn(2, 7, 12))
    whole = trace.attention(1)
    assert whole.shape == (2, 3, 7, 7)
    assert torch.equal(trace.attention(1, 2), whole[:, 2])
    assert torch.allclose(trace.attention(1, query=4), whole[:, :, 4], atol=1e-7)
    assert torch.allclose(trace.attention(1, 0, 4), whole[:, 0, 4], atol=1e-7)
    assert torch.allclose(whole.sum(-1), torch.ones(2, 3, 7), atol=1e-6)
    assert not whole[:, :, 2, 3:].any()


def test_layer_and_head_axes_are_not_confused():
    fused, _ = twins("none", layers=3)
    x = torch.randn(1, 7, 12)
    trace = tracer.trace(fused, x)
    for layer in range(3):
        for head in range(3):
            assert torch.allclose(trace.attention(layer, head), softmax_of(fused, x, layer)[:, head], atol=1e-6)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({"layer": 2}, "layer=2 is outside this run's 2: 0 to 1"),
        ({"layer": -1}, "layer=-1"),
        ({"layer": 0, "head": 3}, "head=3"),
        ({"layer": 0, "query": 7}, "query=7"),
        ({"layer": 0, "part": "text"}, "part='text'"),
    ],
)
def test_what_the_run_lacks_is_refused_in_words(ask, message):
    trace = tracer.trace(twins("none")[0], torch.randn(1, 7, 12))
    with pytest.raises(ValueError, match=message):
        trace.attention(**ask)


def test_a_model_without_attention_says_so():
    with pytest.raises(ValueError, match="ran no attention"):
        tracer.trace(nn.Linear(5, 3), torch.randn(4, 5)).attention(0)


def test_rows_of_every_rollout_step_sum_to_one():
    trace = tracer.load("vit").trace()
    steps = rollout(trace, steps=True)
    assert steps.shape == (6, 1, 65, 65)
    assert torch.allclose(steps.sum(-1), torch.ones(6, 1, 65), atol=1e-5)
    assert torch.equal(steps[-1], rollout(trace))


def test_rollout_of_one_layer_by_hand():
    fused, _ = twins("none", layers=1)
    trace = tracer.trace(fused, torch.randn(1, 7, 12))
    expected = (trace.attention(0).mean(1) + torch.eye(7)) / 2
    assert torch.allclose(rollout(trace), expected)


def test_grouped_heads_are_repeated():
    class Grouped(nn.Module):
        def forward(self, q, k, v):
            return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    trace = tracer.trace(Grouped(), q, k, v)
    expected = (q @ k.repeat_interleave(2, 1).transpose(-2, -1) / 2).softmax(-1)
    assert (trace.attention(0) - expected).abs().max() < 1e-6


class Chained(nn.Module):
    """Attention whose scores go through a chain of its own."""

    def __init__(self, chain):
        super().__init__()
        self.chain = chain

    def forward(self, q, k, v):
        return self.chain(q @ k.transpose(-2, -1)).softmax(-1) @ v


CHAINS = {
    "scaled": lambda s: s * 0.5,
    "capped": lambda s: 5.0 * torch.tanh(s / 5.0),
    "shifted twice": lambda s: (s + 1.0) / 3.0 - 0.25,
    "where": lambda s: torch.where(torch.ones(5, 5).tril().bool(), s, torch.tensor(float("-inf"))),
    "in place": lambda s: s.mul_(0.5).masked_fill_(torch.ones(5, 5).triu(1).bool(), -1e9),
    "bias per head": lambda s: s + torch.linspace(0, 1, 3 * 25).view(3, 5, 5),
    "bias per key": lambda s: s + torch.linspace(0, 1, 5),
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_recorded_chain_is_replayed(name):
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    trace = tracer.trace(Chained(CHAINS[name]), q, k, v)
    expected = CHAINS[name](q @ k.transpose(-2, -1)).softmax(-1)
    assert trace.attentions[0].problem == ""
    assert (trace.attention(0) - expected).abs().max() < 1e-6
    assert (trace.attention(0, query=3) - expected[:, :, 3]).abs().max() < 1e-6


@pytest.mark.parametrize(
    "close",
    [
        lambda s: s.masked_fill(torch.ones(1, 1).triu(1).bool(), float("-inf")),
        lambda s: torch.where(torch.ones(1, 1).tril().bool(), s, torch.tensor(float("-inf"))),
    ],
)
def test_a_mask_of_one_token_is_replayed_and_hides_nothing(close):
    trace = tracer.trace(Chained(close), *(torch.randn(2, 3, 1, 4) for _ in range(3)))
    assert trace.attentions[0].problem == "" and trace.attentions[0].mask == "none"
    assert (trace.attention(0) == 1).all()


def test_a_chain_that_is_not_known_is_not_recoverable_and_says_why():
    trace = tracer.trace(Chained(lambda s: s.sigmoid()), *(torch.randn(2, 3, 5, 4) for _ in range(3)))
    if trace.attentions:
        with pytest.raises(ValueError, match="not recoverable"):
            trace.attention(0)


def test_a_softmax_over_classes_is_no_attention():
    class Classifier(nn.Module):
        def forward(self, x, w):
            return (x @ w).softmax(-1).argmax(-1)

    assert not tracer.trace(Classifier(), torch.randn(2, 5, 4), torch.randn(2, 4, 7)).attentions


def test_a_mask_that_all_layers_share_is_kept_once():
    trace = tracer.trace(twins("prefix", layers=3)[0], torch.randn(1, 7, 12), prove=False)
    given = [a for record in trace.attentions for name, arguments in record.chain if name != "mul" for a in arguments]
    keys = [key for key in given if str(key).startswith("attention.")]
    assert len(keys) == 3 and all(key in trace.values for key in keys)
