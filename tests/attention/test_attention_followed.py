"""Attention is found by its computation and not by its spelling: each spelling has the weights that it ran."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tracer
from tests.support.first_values import FirstValues
from tracer.attention.masks import kind, visible
from tracer.capture import record
from tracer.capture.score_path import Atom, axes_after

RAN = FirstValues()
"""Attention weights that modules computed."""

B, S, D, h, d = 2, 5, 12, 3, 4


class Attends(nn.Module):
    """Attention from one packed projection; `spelled(q, k, v, net)` returns (context, weights), `[B, h, S, …]`."""

    def __init__(self, spelled):
        super().__init__()
        self.packed, self.spelled = nn.Linear(D, 3 * D), spelled
        self.before, self.after = nn.Linear(h, h), nn.Linear(h, h)
        self.gate, self.sinks = nn.Parameter(torch.rand(h, 1, 1)), nn.Parameter(torch.randn(h))
        self.register_buffer("lower", torch.ones(S, S, dtype=torch.bool).tril())

    def forward(self, x):
        q, k, v = self.packed(x).view(B, S, 3, h, d).permute(2, 0, 3, 1, 4).unbind(0)
        context, weights = self.spelled(q, k, v, self)
        RAN.put(self, weights)
        return context


def einsum(q, k, v, net):
    weights = (torch.einsum("bhid,bhjd->bhij", q, k) / 2).softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v), weights


def einsum_of_other_axes(q, k, v, net):
    q, k, v = (x.permute(2, 0, 1, 3) for x in (q, k, v))  # [S, B, h, d]
    weights = (torch.einsum("ibhd,jbhd->ijbh", q, k) / 2).softmax(1)
    return torch.einsum("jbhd,ijbh->ibhd", v, weights), weights.permute(2, 3, 0, 1)


def keys_first(q, k, v, net):
    weights = (k @ q.mT / 2).softmax(-2)
    return (v.mT @ weights).mT, weights.mT


def talking_heads(q, k, v, net):
    scores = net.before((q @ k.mT / 2).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    weights = scores.softmax(-1)
    return net.after(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v, weights


def gate_weights(q, k, v, net):
    weights = (q @ k.mT / 2).softmax(-1)
    return (weights * net.gate.sigmoid()) @ v, weights


def drop_weights(q, k, v, net):
    weights = (q @ k.mT / 2).softmax(-1)
    return F.dropout(weights, 0.5, training=True) @ v, weights


def filled_by_index(q, k, v, net):
    scores = q @ k.mT / 2
    scores[:, :, ~net.lower] = float("-inf")
    weights = scores.softmax(-1)
    return weights @ v, weights


def filled_by_slices(q, k, v, net):
    scores = q @ k.mT / 2
    for row in range(S - 1):
        scores[:, :, row, row + 1 :] = float("-inf")
    weights = scores.softmax(-1)
    return weights @ v, weights


def logarithm(q, k, v, net):
    weights = (q @ k.mT / 2).log_softmax(-1).exp()
    return weights @ v, weights


def written_out(q, k, v, net):
    scores = (q @ k.mT / 2).masked_fill(~net.lower, float("-inf"))
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    weights = raised / raised.sum(-1, keepdim=True)
    return weights @ v, weights


def less_the_logarithm_of_the_sum(q, k, v, net):
    scores = q @ k.mT / 2
    weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()
    return weights @ v, weights


def with_sinks(q, k, v, net):
    sinks = net.sinks.view(1, -1, 1, 1).expand(B, -1, S, 1)
    scores = torch.cat([q @ k.mT / 2, sinks], -1)
    weights = (scores - scores.max(-1, keepdim=True).values).softmax(-1)[..., :-1]
    return weights @ v, weights


def cosine(q, k, v, net):
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
    weights = (scores * net.gate.clamp(max=4.6).exp()).softmax(-1)
    return weights @ v, weights


def grouped_by_einsum(q, k, v, net):
    k, v = k[:, :1], v[:, :1]
    weights = (torch.einsum("bhid,bgjd->bhij", q, k) / 2).softmax(-1)
    return torch.einsum("bhij,bgjd->bhid", weights, v), weights


def flatten_heads(q, k, v, net):
    q, k, v = (x.reshape(B * h, S, d) for x in (q, k, v))
    scores = torch.baddbmm(torch.ones(B * h, S, S), q, k.mT, beta=0.25, alpha=0.5)
    weights = scores.softmax(-1)
    return weights.bmm(v), weights.view(B, h, S, S)


def by_rows(q, k, v, net):
    """Compute decomposed relative positions: the scores are split into rows and columns of keys."""
    along = torch.linspace(0, 1, S).view(1, 1, 1, S, 1)
    scores = (q @ k.mT / 2).view(B, h, S, S, 1) + along
    weights = scores.view(B, h, S, S).softmax(-1)
    return weights @ v, weights


def values_summed(q, k, v, net):
    weights = (q @ k.mT / 2).softmax(-1)
    return (weights[..., None] * v[:, :, None]).sum(-2), weights


SPELLINGS = [
    values_summed,
    einsum,
    einsum_of_other_axes,
    keys_first,
    talking_heads,
    gate_weights,
    drop_weights,
    filled_by_index,
    filled_by_slices,
    logarithm,
    written_out,
    less_the_logarithm_of_the_sum,
    with_sinks,
    cosine,
    grouped_by_einsum,
    flatten_heads,
    by_rows,
]


def trace_attention(spelled, dtype=torch.float32):
    torch.manual_seed(0)
    net = Attends(spelled).to(dtype).eval()
    with torch.no_grad():
        return tracer.trace(net, torch.randn(B, S, D, dtype=dtype)), net


@pytest.mark.parametrize("spelled", SPELLINGS, ids=lambda spelled: spelled.__name__)
def test_the_weights_are_those_that_ran(spelled, tmp_path):
    trace, net = trace_attention(spelled)
    assert [record.problem for record in trace.attentions] == [""]
    assert (trace.attentions[0].heads, trace.attentions[0].over) == (h, "tokens")
    weights = RAN.of(net)
    assert (trace.attention(0) - weights).abs().max() < 1e-6
    assert (trace.attention(0, 1, 3) - weights[:, 1, 3]).abs().max() < 1e-6
    trace.save(tmp_path / "a.safetensors")
    opened = tracer.open(tmp_path / "a.safetensors")
    assert opened.attentions == trace.attentions and torch.equal(opened.attention(0), trace.attention(0))


@pytest.mark.parametrize("spelled", [filled_by_index, filled_by_slices, written_out])
def test_the_mask_is_found_however_it_is_filled_in(spelled):
    trace, _ = trace_attention(spelled)
    assert trace.attentions[0].mask == "causal" and kind(visible(trace)) == "causal"


@pytest.mark.parametrize(
    ("spelled", "after"),
    [
        (einsum, ()),
        (gate_weights, ("mul",)),
        (drop_weights, ("dropout",)),
        (talking_heads, ("heads mixed", "add")),
        (logarithm, ()),
    ],
)
def test_what_is_done_to_the_weights_after_the_softmax_is_named(spelled, after):
    assert trace_attention(spelled)[0].attentions[0].after == after


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("spelled", [einsum, written_out, with_sinks])
def test_the_tolerance_is_that_of_the_dtype(spelled, dtype):
    trace, net = trace_attention(spelled, dtype)
    assert trace.attentions[0].problem == ""
    assert (trace.attention(0) - RAN.of(net)).abs().max() < {torch.bfloat16: 3e-2, torch.float64: 1e-11}[dtype]


def test_two_axes_without_a_batch():
    class Plain(nn.Module):
        def forward(self, q, k, v):
            return (q @ k.T).softmax(-1) @ v

    q, k, v = torch.randn(5, 4), torch.randn(7, 4), torch.randn(7, 3)
    assert torch.allclose(tracer.trace(Plain(), q, k, v).attention(0), (q @ k.T).softmax(-1)[None, None], atol=1e-6)


def lost_by_a_sigmoid(q, k, v, net):
    weights = (q @ k.mT).sigmoid().softmax(-1)
    return weights @ v, weights


def lost_by_learned_scores(q, k, v, net):
    weights = net.packed.weight[:S, :S].softmax(-1).expand(B, h, S, S)
    return weights @ v, weights


def lost_by_a_part(q, k, v, net):
    scores = q @ k.mT
    scores[:, :, 1] = 0.5
    weights = scores.softmax(-1)
    return weights @ v, weights


def lost_by_halves(q, k, v, net):
    weights = q @ k.mT / 2
    weights[1:] = weights[1:].softmax(-1)
    weights[:1] = weights[:1].softmax(-1)
    return weights @ v, weights


def lost_by_heads(q, k, v, net):
    weights = torch.einsum("bhid,bhjd->bhij", q, k)
    for head in (slice(0, 2), slice(2, 3)):
        weights[:, head] = weights[:, head].softmax(-1)
    return torch.einsum("bhij,bhjd->bhid", weights, v), weights


@pytest.mark.parametrize("spelled", [lost_by_halves, lost_by_heads])
def test_a_softmax_of_a_part_of_the_scores_says_so(spelled):
    with torch.no_grad():
        trace, _ = trace_attention(spelled)
    assert trace.attentions and all("on a part of the scores" in record.problem for record in trace.attentions)


@pytest.mark.parametrize(
    ("spelled", "reason"),
    [
        (lost_by_a_sigmoid, "they come from sigmoid"),
        (lost_by_learned_scores, "they come from the packed.weight"),
        (lost_by_a_part, "differs from the softmax that ran"),
    ],
)
def test_what_took_values_and_is_not_recovered_is_listed_with_the_reason(spelled, reason, tmp_path):
    trace, _ = trace_attention(spelled)
    assert len(trace.attentions) == 1 and reason in trace.attentions[0].problem
    with pytest.raises(ValueError, match="not recoverable"):
        trace.attention(0)
    trace.save(tmp_path / "a.safetensors")
    assert tracer.open(tmp_path / "a.safetensors").attentions == trace.attentions


def test_a_softmax_that_takes_no_values_is_no_attention():
    class Gates(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, x):
            y = self.first(x).softmax(-1) * x  # a gate of each feature
            y = self.second(y)
            best = y.softmax(-1).topk(2)  # a router
            return best.values.sum(), (x @ x.mT).softmax(-1).argmax(-1)

    assert tracer.trace(Gates(), torch.randn(B, S, D)).attentions == ()


def test_axes_of_a_copy_that_is_spread_out_are_lost():
    axes = ((Atom(3),), (Atom(5),))
    assert axes_after("clone", (), axes, (3, 5)) == axes
    assert axes_after("copy", (), axes, (2, 3, 5)) is None and axes_after("split", (2,), axes, (2, 3, 5)) is None


class GroupedInInferenceMode(nn.Module):
    """Grouped queries whose forward runs in inference mode, which shows composite ops."""

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(D, 4 * d, False), nn.Linear(D, 2 * d, False)

    @torch.inference_mode()
    def forward(self, x):
        q, k = self.q(x).view(B, S, 4, d), self.kv(x).view(B, S, 2, 1, d).expand(B, S, 2, 2, d).reshape(B, S, 4, d)
        scores = torch.matmul(q.transpose(1, 2), k.transpose(1, 2).transpose(2, 3)) / d**0.5
        causal = torch.full((S, S), float("-inf")).triu(1)
        weights = (scores + causal).float().softmax(-1).type_as(q)
        return torch.matmul(weights, k.transpose(1, 2)).transpose(1, 2).reshape(B, S, -1)


def test_attention_in_inference_mode_is_that_without_it():
    run = tracer.trace(GroupedInInferenceMode().eval(), torch.randn(B, S, D), symbols={"B": 0, "T": 1})
    (attention,) = run.attentions
    assert (attention.heads, attention.queries, attention.mask, attention.problem) == (4, S, "causal", "")
    assert torch.allclose(run.attention(0).sum(-1), torch.ones(B, 4, S), atol=1e-6)
    assert {step.verdict for step in run.steps} == {"verified"}
    assert {"bmm", "mm"} <= {op.op for op in run.ops} and not {"matmul", "linear"} & {op.op for op in run.ops}


@pytest.mark.parametrize("calls", [True, False])
def test_weights_of_inference_mode_run_the_same_ops(calls):
    def ops(net) -> list[str]:
        return [op.name for op in record(net, (x,), calls=calls).ops]

    stack = nn.Sequential(nn.Linear(8, 8, bias=False), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True))
    stack.eval().requires_grad_(False)  # a product of several axes is folded or not by what needs gradients
    with torch.inference_mode():
        x = torch.randn(2, 5, 8)
        within = ops(copy.deepcopy(stack))
    x = x.clone()
    with torch.no_grad():
        outside = ops(stack)
    assert within == outside


class HeadsInThirdAxis(nn.Module):
    """Latent attention (DeepSeek-AI 2024): keys are shared, and heads are the third axis of scores."""

    def __init__(self, stacked: bool):
        super().__init__()
        self.stacked, self.up = stacked, nn.Parameter(torch.randn(h, d, 6))
        self.q, self.latent, self.out = nn.Linear(D, h * d), nn.Linear(D, 6), nn.Linear(h * 6, D)

    def forward(self, x):
        q, keys = self.q(x).view(B, S, h, d), self.latent(x)
        if self.stacked:
            q = torch.einsum("bshd,hdc->bshc", q, self.up)
        else:
            q = torch.matmul(q.transpose(1, 2), self.up).transpose(1, 2)
        scores = torch.einsum("bshc,btc->bsht", q, keys) * 6**-0.5
        weights = (scores + torch.full((S, S), float("-inf")).triu(1).unsqueeze(1)).softmax(-1)
        return self.out(torch.einsum("bsht,btc->bshc", weights, keys).flatten(2))


@pytest.mark.parametrize("stacked", [True, False])
def test_heads_of_latent_attention_are_found(stacked):
    torch.manual_seed(0)
    run = tracer.trace(HeadsInThirdAxis(stacked).eval(), torch.randn(B, S, D))
    (attention,) = run.attentions
    assert (attention.heads, attention.queries, attention.keys, attention.problem) == (h, S, S, "")
    weights = run.attention(0)
    assert weights.shape == (B, h, S, S) and weights.triu(1).abs().max() == 0


def test_an_observer_never_raises_into_the_forward(monkeypatch):
    def fail(*args):
        raise IndexError("tuple index out of range")

    net, x = Attends(einsum).eval(), torch.randn(B, S, D)
    monkeypatch.setattr("tracer.capture.attention_detector.WeightTracker.see", fail)
    run = tracer.trace(net, x)
    note = "attention is not followed through bmm (IndexError: tuple index out of range)"
    assert note in run.notes and not run.attentions
    assert {step.verdict for step in run.steps} == {"verified"}


def test_an_axis_without_numbers_is_followed():
    def attend(x):
        weights = torch.softmax(x @ x.transpose(1, 2), -1)
        return weights[:, :0].reshape(2, 0, 5), weights[:, 0:].reshape(2, -1, 5) @ x

    run = tracer.trace(attend, torch.randn(2, 5, 3))
    assert run.notes == () and [attention.queries for attention in run.attentions] == [5]


@pytest.mark.parametrize("batch", [2, 3])
def test_heads_of_learned_queries_are_no_samples(batch):
    net, queries = nn.MultiheadAttention(D, h, batch_first=True).eval(), nn.Parameter(torch.randn(1, 2, D))
    pool = nn.Module()
    pool.net, pool.queries = net, queries
    pool.forward = lambda x: net(queries.expand(len(x), -1, -1), x, x, average_attn_weights=False)
    x = torch.randn(batch, S, D)
    trace = tracer.trace(pool, x, symbols={"B": 0, "T": 1})
    assert trace.attention(layer=0, head=None).shape == (batch, h, 2, S)
    torch.testing.assert_close(trace.attention(layer=0, head=None), pool.forward(x)[1].detach())
