"""Loss of the next token, as steps and as PyTorch has it; the gradient that flows back; and the page of both."""

import re
from math import exp, log

import pytest
import torch
import torch.nn.functional as F

import tracer
from pages.ui import screen
from tests.app.test_app import text, visit
from tests.support.sweeping import cases
from tracer.figures.predictions import colour_text
from tracer.lessons.next_token_loss import loss
from tracer.lessons.training_step import find_blocks, highway


@pytest.fixture(scope="module")
def run():
    """Return a small model of the next token, its input, and its logits."""
    made = tracer.load("nanogpt", L=3, D=16, h=2, d_ff=32)
    (tokens,) = made.inputs(text="To be, or not")
    with torch.no_grad():
        return made, tokens, made.net(tokens)


def test_the_steps_of_the_loss_are_verified_and_are_cross_entropy(run):
    _, tokens, logits = run
    found = loss(logits, tokens)
    assert [step.verdict for step in found.steps] == ["verified"] * 5 and found.verified and 0 <= found.error < 1e-5
    shapes = [("B", "T", "V"), ("B", "T - 1"), ("B", "T - 1"), ("B", "T - 1"), ()]
    assert [step.symbolic for step in found.steps] == shapes
    assert not [step.latex for step in found.steps if r"\to" in step.latex]  # no layout beside what is computed
    targets = found.steps[1]
    assert (targets.id, targets.error, targets.shape) == ("targets", 0, (1, 12))
    assert targets.latex == r"\mathbf{y} = {\mathbf{t}}_{[\ldots,\,1:T]}"
    assert r"\mathbf{y}" in found.steps[2].latex and r"\mathbf{t}" not in found.steps[2].latex
    expected = -logits[0].double().log_softmax(-1)[range(12), tokens[0, 1:]]  # token i of the logits, i + 1 of the text
    assert torch.allclose(torch.tensor(found.losses).double(), expected, atol=1e-5)
    assert found.mean == pytest.approx(float(expected.mean()), rel=1e-5) and found.guess == log(65)
    assert found.probabilities[3] == pytest.approx(exp(-found.losses[3]), rel=1e-4)


def test_a_single_token_has_no_loss(run):
    with pytest.raises(ValueError, match="no next one"):
        loss(run[2][:, :1], run[1][:, :1])


def backwards(net, tokens, residual: bool) -> list[float]:
    """Return the norms at the streams, by a forward pass that is written out, each sum with or without its first
    part."""
    with torch.enable_grad():
        x = (net.tokens(tokens) + net.positions[: tokens.shape[1]]).detach().requires_grad_()
        mask = torch.full((tokens.shape[1],) * 2, float("-inf")).triu(1)
        streams = [x]
        for block in (net.block1, net.block2, net.block3):
            x = (x if residual else x.detach()) + block.attention(block.norm1(x), mask)
            x = (x if residual else x.detach()) + block.mlp(block.norm2(x))
            streams.append(x)
        logits = net.norm(x) @ net.tokens.weight.T
        mean = F.cross_entropy(logits[0, :-1], tokens[0, 1:])
        return [float(one.norm()) for one in torch.autograd.grad(mean, streams)]


def test_the_gradient_is_that_of_a_pass_that_is_written_out_and_leaves_nothing_behind(run):
    made, tokens, logits = run
    found = highway(made.net, (tokens,), tokens, made.net.blocks)
    assert found.whole == pytest.approx(backwards(made.net, tokens, True), rel=1e-4)
    assert found.branches == pytest.approx(backwards(made.net, tokens, False), rel=1e-4)
    assert found.whole[0] > found.branches[0] and found.whole[-1] == found.branches[-1]
    assert found.loss == pytest.approx(float(F.cross_entropy(logits[0, :-1], tokens[0, 1:])), rel=1e-6)
    assert all(one.grad is None and one.requires_grad for one in made.net.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in made.net.modules())


@pytest.mark.parametrize("name", ["llama", "vit-text"])
def test_other_blocks_have_a_highway_too(name):
    model = tracer.load(name, L=2)
    inputs = tuple(model.inputs())
    norms = highway(model.net, inputs, inputs[-1], find_blocks(model.net, model.trace(prove=False)))
    assert len(norms.whole) == 3 and norms.branches[0] < norms.whole[0] / 2


@pytest.mark.parametrize("name", cases(("hf:gpt2", "hf:llama", "hf:opt"), ("hf:gpt2",)))
def test_blocks_of_a_library_have_one_that_is_a_pass_without_the_streams_in_the_sums(name):
    model = tracer.load(name)
    (tokens,) = model.inputs()
    paths = find_blocks(model.net, model.trace(prove=False))
    norms = highway(model.net, (tokens,), tokens, paths)
    assert len(paths) == 2 and len(norms.whole) == len(norms.branches) == 3
    last = model.net.get_submodule(paths[-1])
    with torch.enable_grad():
        kept = []
        hook = last.register_forward_hook(lambda module, args, output: kept.append(output))
        logits = model.net(tokens).logits
        hook.remove()
        stream = kept[0][0] if isinstance(kept[0], tuple) else kept[0]
        mean = F.cross_entropy(logits[0, :-1], tokens[0, 1:])
        (gradient,) = torch.autograd.grad(mean, [stream])
    assert norms.whole[-1] == norms.branches[-1] == pytest.approx(float(gradient.norm()), rel=1e-4)
    assert norms.branches[0] != norms.whole[0] and norms.loss == pytest.approx(float(mean.detach()), rel=1e-5)


def test_blocks_whose_sums_have_two_branches_are_refused_in_a_sentence():
    model = tracer.load("hf:gpt_neox")
    (tokens,) = model.inputs()
    with pytest.raises(ValueError, match=r"0 sums add a branch .* in its 2 blocks, expected 4"):
        highway(model.net, (tokens,), tokens, find_blocks(model.net, model.trace(prove=False)))
    with pytest.raises(ValueError, match="no blocks with attention"):
        highway(model.net, (tokens,), tokens, ())


def test_colours_say_the_loss_and_no_text_becomes_markup():
    drawn = colour_text(["<", "b", "\n"], [log(4), 0.0], [0.25, 1.0], log(4), joined=True)
    assert "&lt;</span>" in drawn and "rgba(201, 116, 29, 0.650)" in drawn and "rgba(201, 116, 29, 0.000)" in drawn
    assert "&#x27;b&#x27;: p = 0.25, −log p = 1.39" in drawn and "no loss: no token" in drawn and "1.39 = ln V" in drawn


def test_the_largest_loss_has_the_deepest_colour():
    drawn = colour_text(["a", "b", "c"], [0.1, 1.0], [0.9, 0.4], 2.0, joined=True)
    shades = [float(share) for share in re.findall(r'background:rgba\([\d, ]+, ([\d.]+)\)" title', drawn)]
    assert shades == pytest.approx([0.65 * 0.05, 0.65 * 0.5], abs=1e-3)


def test_the_page_shows_the_text_on_screen_or_says_whose_it_is():
    own = visit("loss", model="nanogpt", text="To be")
    said = text(own)
    assert (
        not own.info
        and said.count("verified on this run and 3 others, largest difference") == 5
        and "the same, up to rounding" in said
    )
    assert list(own.table[0].value["token"]) == ["'o'", "' '", "'b'", "'e'"]
    other = visit("loss", model="vit")
    assert "this page shows nanogpt on its sample" in other.info[0].value
    assert not other.sidebar.button_group and "This page shows nanogpt on its sample" in text(other)
    front = visit("loss", model="vit").switch_page("pages/overview.py").run()
    assert front.sidebar.button_group[0].label == "Sample" and "This page shows" not in text(front)
    next(button for button in other.main.button if button.label == "Choose nanogpt").click().run()
    assert not other.exception and not other.info and other.sidebar.selectbox[0].value == "nanogpt"
    assert "This page shows nanogpt" not in text(other)
    assert "There is no loss: a single token" in visit("loss", model="nanogpt", text="T").info[0].value


def test_a_decoder_of_a_library_has_its_loss_its_highway_and_the_gradients_of_its_parameters():
    at = visit("loss", model="hf:gpt2")
    next(button for button in at.button if button.label == "Load it").click().run()
    page = text(at)
    assert not at.exception
    assert "it has learned nothing" in at.info[0].value and "among all 320 tokens" in at.info[0].value
    assert (
        page.count("verified on this run and 3 others, largest difference") == 5 and "the same, up to rounding" in page
    )
    assert "times larger with the residual path" in page and "equations: 28 of 28 verified" in page


@pytest.mark.sweep
def test_a_mask_that_shows_the_answer_is_warned_of():
    assert (
        "Without a causal mask" in visit("loss", model="nanogpt", text="To be", mask="bidirectional").warning[-1].value
    )


def test_of_a_picture_with_words_the_patches_have_no_targets():
    at = visit("loss", model="vit-text", text="a small blue square")
    said = text(at)
    assert (
        "64 patches went through the blocks before the words, but none of the 5 rows of logits belongs to a patch"
        in said
    )
    assert "is predicted from '\\<begin>'" in said or "is predicted from '<begin>'" in said
    (svg,) = [part.proto for part in at.get("bidi_component") if part.proto.component_name == "drawing"]
    assert "they have no targets" in str(svg)


def test_a_picture_of_which_only_the_run_is_known_is_that_of_the_run(monkeypatch):
    monkeypatch.setattr(screen, "card", lambda: None)
    at = visit("loss", model="vit-text", text="a small blue square")
    assert "64 patches went through the blocks" in text(at)
