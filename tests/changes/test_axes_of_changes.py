"""Axes of heads and tokens in any layout, and masks that reach beyond the run."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import tracer
from tests.support.loaded_models import load
from tracer import changes
from tracer.changes.options import options

B, T, H, D = 2, 5, 3, 12


class Attention(nn.Module):
    """Attention whose queries stay in the layout `[B, T, h, d_k]`."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(D, D) for _ in range(3))

    def forward(self, x, change=lambda q: q):
        q, k, v = (layer(x).unflatten(-1, (H, D // H)) for layer in (self.query, self.key, self.value))
        weights = (torch.einsum("bthd,bshd->bhts", change(q), k) / 2).softmax(-1)
        return torch.einsum("bhts,bshd->bthd", weights, v).flatten(2)


class OneHead(nn.Module):
    """Attention without an axis of heads: weights are `[B, T, T]`."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        return (self.query(x) @ self.key(x).mT / 3).softmax(-1) @ self.value(x)


def trace_module(module, width, change=None):
    torch.manual_seed(1)
    return tracer.trace(module.eval(), torch.randn(B, T, width), symbols={"B": 0, "T": 1}, change=change)


def drop_head(q):
    q = q.clone()
    q[:, :, 1] = 0
    return q


@pytest.mark.parametrize(
    ("change", "function"), [("drop_heads(1)", drop_head), ("mean", lambda q: q.mean(1, keepdim=True).expand_as(q))]
)
def test_heads_behind_tokens_are_told_apart_by_the_scores(change, function):
    module = Attention()
    run = trace_module(module, D, {"attention.query": change}).check()
    torch.manual_seed(1)
    with torch.no_grad():
        expected = module(torch.randn(B, T, D), function)
    assert torch.allclose(run.output, expected, atol=1e-6) and not [step.id for step in run.steps if step.refuted]


@pytest.mark.parametrize("kind", ["drop_heads", "keep_heads"])
def test_weights_without_an_axis_of_heads_have_no_head_to_switch_off(kind):
    module = OneHead()
    plain = trace_module(module, 8)
    assert not [option for option in options(plain) if "ead 1" in option.title]
    line = next(step.id for step in plain.steps if step.id.endswith("weights"))
    with pytest.raises(ValueError, match=r"has no axis of heads: it is \[.*B, T, T\], expected one as in"):
        trace_module(module, 8, {line: f"{kind}(0)"})


@pytest.mark.parametrize("change", ["prefix(6)", "prefix(10)", "window(12)", "window(30)"])
def test_a_mask_that_reaches_beyond_the_run_is_printed_with_its_own_number(change):
    run = load("nanogpt").trace(change={"block1.attention.scores": change}, T=4).check()
    step = run.step("block1.attention.scores.changed")
    assert f"< {change.partition('(')[2][:-1]} " in step.latex.replace(r"\\", " ")
    assert step.checked == 3 and not [step.id for step in run.steps if step.refuted]


@pytest.mark.parametrize("name", ["vit", "nanogpt"])
def test_a_causal_mask_is_checked_on_other_runs(name):
    run = load(name).trace(change={"block1.attention.scores": "causal"}).check()
    assert run.step("block1.attention.scores.changed").checked == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("logits=zero", "change='logits=zero', expected changes by the ids of lines"),
        ({5: "zero"}, "change={5: 'zero'}, expected changes by the ids of lines"),
        ({"input image": "zero"}, "there is no line 'input image'"),
        ({"logits": changes.replace("zero")}, "source='zero', expected a tensor or a trace"),
        ({"block1.attention.scores": f"window({2**40})"}, "the change 'window(1099511627776)' can't be read"),
    ],
)
def test_what_is_no_change_is_refused_in_a_sentence(change, message):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        load("vit").trace(change=change)
    assert message in str(error.value)


def test_all_lines_can_be_changed_at_once():
    assert torch.count_nonzero(load("vit").trace(change={"*": "zero"}).output) == 0


def test_one_number_is_a_list_of_one():
    assert str(changes.hide(3)) == "hide(3,mean)" and str(changes.close(1, 2)) == "close(1;2)"


class Multi(nn.Module):
    """PyTorch's own attention, whose weights are [B·h, T, T]; `drop` zeroes a head of the values that it joins."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def without_head(net, x, head: int) -> torch.Tensor:
    """Return the output of a net whose output projection does not read a head."""
    net = copy.deepcopy(net)
    net.attention.out_proj.weight.data[:, 4 * head : 4 * head + 4] = 0
    return net(x)


@pytest.mark.parametrize("batch", [2, 1])
@pytest.mark.parametrize("line", ["*.weights", "*.context"])
def test_heads_that_share_an_axis_are_dropped(batch, line, tmp_path):
    torch.manual_seed(0)
    net, x = Multi().eval(), torch.randn(batch, 5, 12)
    with torch.no_grad():
        run = tracer.trace(net, x, symbols={"B": 0, "T": 1}, change={line: "drop_heads(1)"})
        assert torch.allclose(run.output, without_head(net, x, 1), atol=1e-6)
    assert {step.verdict for step in run.steps} == {"verified"}
    weights = run.attention(0)
    assert weights.shape == (batch, 3, 5, 5) and bool(weights[:, [0, 2]].any())
    assert bool(weights[:, 1].any()) == (line == "*.context")
    run.save(tmp_path / "run.safetensors")
    assert torch.equal(tracer.open(tmp_path / "run.safetensors").attention(0), weights)
    with pytest.raises(ValueError, match="there is no head 3"):
        tracer.trace(net, x, symbols={"B": 0, "T": 1}, change={line: "drop_heads(3)"})


class FeatureMaps(nn.Module):
    """Two convolutions: the line between them is a map `[B, C, H, W]`."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 1)

    def forward(self, x, change=lambda maps: maps):
        return self.last(change(self.first(x)))


def shuffle_columns(maps):
    order = np.random.default_rng(3).permutation(maps.shape[-1])
    return maps[..., order.tolist()]


def add_noise(maps):
    noise = np.random.default_rng(2).standard_normal(maps.shape[1:]) * 0.5
    return maps + torch.from_numpy(noise).float()


@pytest.mark.parametrize(
    ("change", "function"),
    [
        ("mean", lambda maps: maps.flatten(2).mean(2)[:, :, None, None].expand_as(maps)),
        ("zero", torch.zeros_like),
        ("scale(0.5)", lambda maps: maps / 2),
        ("noise(0.5,2)", add_noise),
        ("shuffle(3)", shuffle_columns),
    ],
)
def test_a_change_of_a_feature_map_is_that_of_its_rows_and_columns(change, function):
    torch.manual_seed(0)
    net, x = FeatureMaps().eval(), torch.randn(2, 3, 5, 7)
    with torch.no_grad():
        line = next(step.id for step in tracer.trace(net, x, symbols={"B": 0}).steps if step.shape == (2, 4, 5, 7))
        run = tracer.trace(net, x, symbols={"B": 0}, change={line: change})
        torch.testing.assert_close(run.output, net(x, function), rtol=1e-5, atol=1e-6)
        assert not torch.allclose(run.output, net(x), atol=1e-3)
    assert not [step.id for step in run.steps if step.refuted]
