"""What the explanations of steps state as a fact, measured."""

import re

import pytest
import torch

import tracer
from tracer.derive import whys as why
from tracer.models import clip, llama, mae, nanogpt, segmenter, transformer, vit, vit_text

HINTED = (clip, llama, mae, nanogpt, segmenter, transformer, vit, vit_text)
"""Models whose reasons stand in their hints."""


def reasons(model) -> list[str]:
    """What a model's hints give as reasons."""
    return [hint.why for hint in model.HINTS]


def said(model, at: str) -> str:
    """The reason that a model's hints give for a line."""
    return next(hint.why for hint in model.HINTS if hint.at == at)


BENT = {"GELU": torch.nn.GELU(), "GELUTanh": torch.nn.GELU(approximate="tanh"), "SiLU": torch.nn.SiLU()}


@pytest.mark.parametrize("name", BENT)
def test_negative_numbers_stay_within_the_stated_bound(name):
    low = float(re.search(r"between (-[\d.]+) and 0", why.WHY[name])[1])
    bent = BENT[name](torch.linspace(-40, -1e-6, 1_000_001, dtype=torch.float64))
    assert low <= bent.min() < low + 0.011 and bent.max() <= 0
    assert BENT[name](torch.tensor(8.0, dtype=torch.float64)) == pytest.approx(8, rel=0.001)


def test_the_products_of_the_mlp_hold_twice_the_weights_of_attention():
    assert "twice as many weights as the four of attention" in why.WHY["contract"]
    block = tracer.load("vit", D=12, h=2, d_ff=48).net.block1
    weights = {
        part: sum(p.numel() for name, p in block.get_submodule(part).named_parameters() if name.endswith("weight"))
        for part in ("attention", "mlp")
    }
    assert weights["mlp"] == 2 * weights["attention"]


def test_without_positions_shuffled_patches_give_the_same_class():
    assert "shuffled patches would give the same class" in said(vit, "position")
    model = tracer.load("vit", H=12, W=8, P=4, D=12, h=2, d_ff=10, L=2)
    (image,) = model.inputs()
    cut = image.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3)  # [B, C, N, P, P]
    order = torch.tensor([3, 5, 0, 2, 1, 4])
    shuffled = cut[:, :, order].unflatten(2, (3, 2)).permute(0, 1, 2, 4, 3, 5).reshape(image.shape)
    with torch.no_grad():
        assert not torch.allclose(model.net(shuffled), model.net(image), atol=1e-4)
        model.net.position.zero_()
        assert torch.allclose(model.net(shuffled), model.net(image), atol=1e-5)


def test_what_stands_after_the_end_of_a_sentence_changes_nothing():
    assert "What stands after it changes nothing" in said(clip, "text.index")
    model = tracer.load("clip")
    image, tokens = model.inputs()
    tokens = torch.cat([tokens, torch.full((len(tokens), 2), clip.END)], dim=1)[:, : model.sizes["T_max"]]
    changed = tokens.clone()
    changed[:, -1] = 4  # a word
    with torch.no_grad():
        assert (tokens == clip.END).sum(dim=1).min() > 1
        assert torch.allclose(model.net(image, changed), model.net(image, tokens), atol=1e-5)


def test_patches_read_from_cls_in_every_block():
    assert "in every block the patches could read from it" in said(segmenter, "tokens")
    trace = tracer.load("segmenter").trace()
    for layer in range(len(trace.attentions)):
        assert trace.attention(layer)[:, :, 1:, 0].min() > 0


def test_the_score_of_a_tied_head_is_a_dot_product():
    for model in (nanogpt, vit_text):
        assert "direction counts, and so does its length" in said(model, "logits")
    trace = tracer.load("nanogpt", tied=True).trace()
    logits, last, table = trace.steps[-1], trace.value("norm"), tracer.load("nanogpt", tied=True).net.tokens.weight
    assert torch.allclose(trace.value(logits), last @ table.T, atol=1e-4)
    assert torch.allclose(2 * trace.value(logits)[..., 5], last @ (2 * table[5]), atol=1e-4)


def test_a_query_of_parameters_asks_the_same_of_every_input():
    class Pool(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.probe = torch.nn.Parameter(torch.randn(1, 1, 6))
            self.query, self.key, self.value = (torch.nn.Linear(6, 6) for _ in range(3))

        def forward(self, x):
            q, k, v = self.query(self.probe.expand(len(x), 1, 6)), self.key(x), self.value(x)
            return (q @ k.mT / 6**0.5).softmax(-1) @ v

    net = Pool()
    one, other = (tracer.trace(net, torch.randn(2, 5, 6), symbols={"B": 0, "T": 1}) for _ in range(2))
    asked = [step for step in one.steps if "the same is asked of every input" in step.why]
    assert [step.title for step in asked] == ["Queries"]
    assert torch.equal(one.value(asked[0]), other.value(asked[0]))


FALSE = ("alone has seen", "drift as training", "deep stacks then learn", "most of a block", "nearly 0", "most like")


def test_no_explanation_says_what_a_run_contradicts():
    said = " ".join(" ".join(found) for found in (why.WHY.values(), *map(reasons, HINTED)))
    assert [phrase for phrase in FALSE if phrase in said] == []
