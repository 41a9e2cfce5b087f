"""Mask on screen and mask that ran, equal cell by cell, and a second proof that knows no mask."""

import pytest
import torch

import tracer
from tests.support.hazards import ExplicitAttention, FusedAttention
from tracer.attention import layers
from tracer.attention.masks import (
    ChangedPositions,
    blocks,
    causal,
    influence,
    kind,
    largest_share,
    padding,
    predict_under_mask,
    prefix,
    reach,
    row,
    rows,
    streams,
    traced_streams,
    visible,
    whole,
)
from tracer.capture.score_path import hides
from tracer.record import Segment

SEGMENTS = (Segment("image", 0, 2), Segment("text", 2, 7))


@pytest.mark.parametrize("make", [FusedAttention, ExplicitAttention], ids=lambda make: make.__name__)
@pytest.mark.parametrize(("mask", "named"), [("none", "bidirectional"), ("causal", "causal"), ("prefix", "prefix")])
def test_the_mask_is_read_from_the_run(make, mask, named):
    net = make(mask, layers=2)
    trace = tracer.trace(net, torch.randn(2, 7, 12))
    i, j = torch.arange(7)[:, None], torch.arange(7)
    expected = {"none": i == i, "causal": j <= i, "prefix": (j <= i) | (j < 2)}[mask].expand(7, 7)
    for layer in range(2):
        for head in range(3):
            cells = visible(trace, layer, head=head, batch=1)
            assert torch.equal(cells, expected)
            assert torch.equal(cells, trace.attention(layer, head)[1] > 0)
    assert kind(cells) == named


def test_a_padded_mask_is_read_per_input():
    class Padded(FusedAttention):
        def masks(self, S):
            return {"attn_mask": padding(torch.tensor([4, 7]), S)}

    trace = tracer.trace(Padded(), torch.randn(2, 7, 12))
    assert kind(visible(trace, 0, batch=0)) == "padded" and kind(visible(trace, 0, batch=1)) == "bidirectional"
    assert visible(trace, 0, batch=0)[6].tolist() == [True] * 4 + [False] * 3


@pytest.mark.parametrize("make", [FusedAttention, ExplicitAttention], ids=lambda make: make.__name__)
@pytest.mark.parametrize("mask", ["none", "causal", "prefix"])
def test_one_row_before_and_after_the_mask(make, mask):
    net, x = make(mask), torch.randn(1, 7, 12)
    trace = tracer.trace(net, x)
    q, k, _ = net.packed0(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)
    found = row(trace, 3, head=2)
    assert torch.allclose(found.before, (q @ k.transpose(-2, -1) / 2)[0, 2, 3], atol=1e-6)
    assert torch.equal(found.mask == 0, visible(trace, 0, head=2)[3])
    assert torch.allclose((found.before + found.mask).softmax(-1), found.weights, atol=1e-6)
    every = whole(trace, [1, 3])
    assert torch.allclose(every.before, (q @ k.transpose(-2, -1) / 2)[0, :, [1, 3]], atol=1e-6)
    assert torch.equal(every.weights[2, 1], found.weights) and every.before.isfinite().all()


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_what_all_rows_of_a_head_keep_to(mask, monkeypatch):
    trace = tracer.trace(FusedAttention(mask), torch.randn(2, 7, 12))
    found, weights = rows(trace, head=2), trace.attention(0, 2)[0]
    assert found.off == float((weights.double().sum(-1) - 1).abs().max()) < 1e-6
    assert found.closed == (None if mask == "none" else 0.0)
    wrong = weights.clone()
    wrong[0, 6] += 0.25  # closed by the causal mask
    monkeypatch.setattr(type(trace), "attention", lambda self, *a, **k: wrong[None])
    assert rows(trace, head=2).off == pytest.approx(0.25)
    assert rows(trace, head=2).closed == (None if mask == "none" else 0.25)


def test_attention_on_what_had_moved_by_then():
    trace = tracer.trace(FusedAttention("causal", layers=2), torch.randn(2, 7, 12))
    first, second = (trace.attention(layer).double() for layer in (0, 1))
    assert largest_share(trace, [5], ChangedPositions((2,), (2,))) == max(w[:, :, 5, 2].max() for w in (first, second))
    later = max(first[:, :, 5, 2].max(), second[:, :, 5][..., [2, 3, 6]].sum(-1).max())  # not yet before block 1
    assert largest_share(trace, [5], ChangedPositions((2,), (2, 3, 6))) == pytest.approx(float(later), abs=1e-12)
    assert largest_share(trace, [1], ChangedPositions((2,), (2, 3, 6))) == 0


def test_kinds_by_hand():
    assert torch.equal(causal(3).exp(), torch.ones(3, 3).tril())
    assert prefix(4, 2).exp().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    assert kind(prefix(4, 3) == 0) == "prefix" and kind(causal(4) == 0) == "causal"
    assert kind(torch.eye(4).bool()) == "other"


def test_blocks_say_who_may_look_at_whom():
    share = {(b.queries, b.keys): b.share for b in blocks(prefix(7, 2) == 0, SEGMENTS)}
    assert share == {
        ("image", "image"): 1.0,
        ("image", "text"): 0.0,
        ("text", "image"): 1.0,
        ("text", "text"): pytest.approx(15 / 25),
    }
    share = {(b.queries, b.keys): b.share for b in blocks(causal(7) == 0, SEGMENTS)}
    assert share["image", "image"] == 0.75  # under a causal mask, patches can't see later patches


def test_reach_follows_the_mask_block_by_block():
    chain = torch.ones(5, 5).tril().triu(-1).bool()  # each token sees itself and the one before
    assert reach(chain, 1, 1) == (1, 2) and reach(chain, 1, 3) == (1, 2, 3, 4)


@pytest.mark.parametrize("token", [0, 3, 6])
def test_influence_agrees_with_the_causal_mask(token):
    model = tracer.load("nanogpt", D=16, h=2, d_ff=24, L=2)
    inputs = model.inputs(text="to be or")
    cells = visible(model.trace(text="to be or"))
    assert influence(model, inputs, token) == ((token,), reach(cells, token, 2))
    assert reach(cells, token, 2) == tuple(range(token, 8))


def test_the_run_before_the_change_may_be_given():
    model = tracer.load("nanogpt", D=16, h=2, d_ff=24, L=2)
    inputs, trace, other = model.inputs(text="to be or"), model.trace(text="to be or"), model.trace(text="to he or")
    assert influence(model, inputs, 5, trace=trace) == influence(model, inputs, 5)
    assert influence(model, inputs, 5, trace=other).entering == (3, 5)  # it is what is compared with


def test_the_run_before_the_change_may_be_read_from_a_trace():
    model = tracer.load("nanogpt", D=16, h=2, d_ff=24, L=2)
    trace, inputs = model.trace(text="to be or"), model.inputs(text="to be or")
    for found, ran in zip(traced_streams(model, trace), streams(model, inputs), strict=True):
        assert torch.equal(found, ran)
    assert traced_streams(model, model.trace(text="to be or", prove=False)) is None, "nothing was kept"


def test_influence_agrees_with_no_mask():
    model = tracer.load("vit", D=24, h=2, d_ff=20, L=1, H=12, W=20)
    inputs = model.inputs()
    cells = visible(model.trace())
    assert influence(model, inputs, 5) == ((5,), reach(cells, 5, 1)) == ((5,), tuple(range(16)))


TOWERS = {
    "clip": {"H": 24, "W": 16, "P": 8, "D": 24, "h": 2, "d_ff": 20, "L": 2, "D_e": 7},
    "mae": {"H": 24, "W": 16, "P": 8, "D": 24, "h": 2, "d_ff": 20, "L": 2, "L_dec": 1},
}


@pytest.mark.parametrize(
    ("name", "part", "named"),
    [
        ("clip", "image", "bidirectional"),
        ("clip", "text", "causal"),
        ("mae", "encoder", "bidirectional"),
        ("mae", "decoder", "bidirectional"),
    ],
)
def test_influence_agrees_with_the_mask_of_each_tower(name, part, named):
    model = tracer.load(name, **TOWERS[name])
    inputs, trace = model.inputs(), model.trace(prove=False)
    cells, own = visible(trace, part=part), [s for s in trace.segments if s.part == part and s.name != "CLS"]
    assert kind(cells) == named and cells.shape[0] == max(segment.stop for segment in own)
    for token in (own[0].start, own[-1].stop - 1):
        moved = influence(model, inputs, token, part=part)
        assert moved.leaving == reach(cells, moved.entering, len(layers(trace, part)))
        assert part == "decoder" or moved.entering == (token,)


def test_what_enters_the_decoder_is_what_the_encoder_has_mixed():
    """A visible patch moves all visible ones on its way through the encoder; a hidden one moves nothing at all."""
    model = tracer.load("mae", **TOWERS["mae"])
    inputs = model.inputs()
    seen = tuple(inputs[1][0].tolist())
    hidden = next(patch for patch in range(6) if patch not in seen)
    assert influence(model, inputs, seen[1], part="decoder") == (seen, tuple(range(6)))
    assert influence(model, inputs, hidden, part="decoder") == ((), ())
    assert influence(model, inputs, 1).entering == (1,)  # of the encoder's own sequence
    with pytest.raises(ValueError, match="expected 0 to 2"):
        influence(model, inputs, 3, part="encoder")


@pytest.mark.parametrize(("token", "message"), [(0, "CLS.*is learned"), (99, "expected 0 to 15")])
def test_a_token_that_cannot_be_changed_is_refused(token, message):
    model = tracer.load("vit", D=24, h=2, d_ff=20, L=1, H=12, W=20)
    with pytest.raises(ValueError, match=message):
        influence(model, model.inputs(), token)


def test_what_the_run_lacks_is_refused():
    trace = tracer.trace(FusedAttention(), torch.randn(2, 7, 12))
    for ask, message in [({"layer": 1}, "layer=1"), ({"head": 3}, "head=3"), ({"batch": 2}, "batch=2")]:
        with pytest.raises(ValueError, match=message):
            visible(trace, **ask)


@pytest.mark.parametrize(("mask", "named"), [("bidirectional", "none"), ("causal", "causal")])
def test_a_bias_that_hides_nothing_is_no_mask(mask, named):
    """Relative positions add a number to every score; only what hides keys is called a mask."""
    trace = tracer.load("transformer", positions="relative", mask=mask, L=2).trace(prove=False)
    assert {record.mask for record in trace.attentions} == {named}
    assert any(name == "add" and len(arguments) == 2 for name, arguments in trace.attentions[0].chain)
    assert kind(visible(trace, 1)) == mask


def test_what_hides_a_key_is_told_by_its_numbers():
    tensors = {"bias": torch.tensor([0.5, -3.0]), "mask": torch.tensor([0.0, -1e4]), "taken": torch.tensor([0.0, 1e9])}
    found = {
        (name, key): hides((name, ("scores", key)), tensors.get) for name in ("add", "sub", "mul") for key in tensors
    }
    assert {link for link, hidden in found.items() if hidden} == {("add", "mask"), ("sub", "taken")}
    assert hides(("causal", (-1e9,)), tensors.get) and hides(("masked_fill", ("scores", "bias", -1e9)), tensors.get)


@pytest.mark.parametrize("mask", ["causal", "prefix", "bidirectional"])
def test_what_is_said_under_a_mask_is_what_its_trace_says(mask):
    model = tracer.load("vit-text", mask=mask)
    trace, found = model.trace(prove=False), predict_under_mask(model, model.inputs())
    assert torch.equal(found.cells, visible(trace)) and found.result == trace.result
