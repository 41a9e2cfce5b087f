"""Changes that are offered: found by roles on any model, worded for a screen, and true to their titles."""

import pytest
import torch

import tracer
from tests.support.sweeping import cases
from tracer import changes
from tracer.changes import options


def titles(found):
    return [option.title for option in found]


def test_the_parts_of_a_block_are_offered_by_their_roles(plain):
    assert titles(options.of_model(plain)) == [
        "Patches in shuffled order",
        "No positions",
        "No division by √d_k in any block",
    ]
    assert options.blocks(plain)["block3"] == "Block 3" and len(options.blocks(plain)) == 3
    assert titles(options.of_block(plain, "block3")) == [
        "No norm 1",
        "No attention",
        "No residual connection around the attention",
        "No norm 2",
        "No MLP",
        "No residual connection around the MLP",
    ]


def test_an_attention_offers_its_head_first(plain):
    found = list(options.of_attention(plain, plain.attentions[2], 1))
    assert titles(found) == ["Head 2 off", "Only head 2", "Uniform attention", "No division by √d_k"]
    assert found[0].text == "block3.attention.weights=drop_heads(1)"
    assert found[3].text == "block3.attention.scores=unscale"


@pytest.mark.parametrize("name", cases(("vit", "nanogpt", "hf:gpt2"), ("vit", "nanogpt")))
def test_uniform_attention_gives_each_open_key_the_same_weight(name):
    model = tracer.load(name)
    trace = model.trace(prove=False)
    record = trace.attentions[0]
    uniform = next(one for one in options.of_attention(trace, record) if one.title.startswith("Uniform"))
    weights = model.trace(change={uniform.line: uniform.change}).attention(0)
    size = weights.shape[-1]
    visible = torch.ones(size, size).tril() if record.mask == "causal" else torch.ones(size, size)
    torch.testing.assert_close(weights, (visible / visible.sum(-1, keepdim=True)).expand_as(weights))


def test_without_the_division_scores_are_plain_products(vit, plain):
    option = list(options.of_attention(plain, plain.attentions[0]))[-1]
    trace = vit.trace(change={option.line: option.change})
    query, key = (trace.value(f"block1.attention.{name}") for name in ("query", "key"))
    changed = trace.value("block1.attention.scores.changed")
    torch.testing.assert_close(changed, query @ key.mT, rtol=1e-4, atol=1e-4)


def test_a_line_offers_what_fits_its_shape(plain):
    assert titles(options.of_step(plain, plain.step("embedding"))) == [
        "Set to 0",
        "Mean over positions",
        "Shuffle the order",
        "Noise of its own size",
    ]
    assert titles(options.of_step(plain, plain.step("block1.norm1")))[0] == "Off"
    assert "Shuffle the order" not in titles(options.of_step(plain, plain.step("logits")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("block3.attention.weights=drop_heads(1)", "Block 3: head 2 off"),
        ("block3.attention.weights=drop_heads(1,2)", "Block 3, attention weights without heads 2 and 3"),
        ("block3.attention.weights=keep_heads(0,1,3)", "Block 3, attention weights of heads 1, 2 and 4 alone"),
        ("block1.attention.scores=scale(0.5)", "Block 1, scores × 0.5"),
        ("position=off", "No positions"),
        ("embedding=shuffle(3)", "Embed in shuffled order"),
        ("block2.mlp.output=zero", "Block 2: no MLP"),
        ("norm=noise(0.1,2)", "Last norm with noise of 0.1"),
        ("nowhere=zero", "nowhere set to 0"),
        ("*.attention.scores=causal", "All blocks, scores under a causal mask"),
        ("*.attention.scores=scale(2)", "All blocks, scores × 2"),
        ("block1.*=zero", "block1.* set to 0"),
        ("image=hide(1,2,grey)", "2 patches hidden (grey)"),
        ("image=hide(1,2,removed)", "2 patches removed"),
        ("weights=permute(0)", "Weights in random order"),
    ],
)
def test_a_change_is_worded_for_a_screen(plain, text, words):
    ((line, change),) = changes.parse_all([text]).items()
    assert options.describe(plain, line, change) == words


def test_blocks_of_towers_are_told_apart():
    trace = tracer.load("clip").trace(prove=False)
    assert {"Image block 1", "Text block 1"} <= set(options.blocks(trace).values())


@pytest.mark.parametrize(
    "name", cases(("vit", "nanogpt", "transformer", "hf:gpt2", "hf:llama", "hf:t5"), ("vit", "nanogpt"))
)
def test_what_is_offered_can_be_run(name):
    model = tracer.load(name)
    trace = model.trace(prove=False)
    offered = options.options(trace)
    assert len(offered) > 6
    assert all(changes.parse_all([one.text]) == {one.line: one.change} for one in offered)
    wanted = {one.line: one.change for one in offered}
    changed = model.trace(prove=False, change=wanted)
    assert set(changed.changes) == {f"{line}={change}" for line, change in wanted.items()}
