"""A model without an equation by hand: derived, verified under all its choices, trained; and what hints add to it."""

import pytest
import torch
from torch import nn

import tracer
from tests.support.sweeping import cases
from tests.support.verified import assert_comments, assert_verified
from tracer import models, tracing
from tracer.models import llama, training
from tracer.models.training.recipes.llama import Recipe
from tracer.spec.decoding import write
from tracer.spec.spec import Model, Spec
from tracer.textbook import derivation
from tracer.textbook.names import Hint, idle

SMALL = {"T_max": 11, "D": 24, "h": 6, "h_kv": 3, "d_ff": 20, "L": 2}
CHOICES = [{}, {"tied": False}, {"mask": "bidirectional"}, {"h_kv": 6}, {"h_kv": 1, "h": 3}]


@pytest.mark.parametrize("choice", cases(CHOICES, (CHOICES[0], CHOICES[-1])), ids=str)
def test_all_is_verified(choice):
    trace = assert_verified(tracer.load("llama", **SMALL | choice), B=2, T=7)
    assert trace.attentions[0].mask == ("none" if "mask" in choice else "causal")


def test_shape_comments_are_what_the_trace_solved():
    trace = tracer.load("llama", **SMALL, tied=False).trace(T=7)
    assert assert_comments(llama, trace, {"d_k": "D/h"}) >= 20


def test_the_book_is_that_of_the_papers():
    said = {step.id: step.latex for step in tracer.load("llama", **SMALL).trace(T=7, prove=False).steps}
    assert said["block1.attention.rotated query"].endswith(
        r"\mathbf{Q}^{(1)} \odot \mathbf{c} + \operatorname{rotate\_half}\left(\mathbf{Q}^{(1)}\right) \odot \mathbf{s}"
    )
    assert (
        r"{\operatorname{repeat}_{h}\left(\mathbf{K}'^{(1)}\right)}^{\top}}{\sqrt{d_k}}"
        in said["block1.attention.scores"]
    )
    assert said["block2.mlp.gated"].endswith(r"\mathbf{G}^{(2)} \odot \mathbf{U}^{(2)}")
    assert said["logits"].endswith(r"\mathbf{X}_f\,{\mathbf{E}}^{\top}")


def test_scores_depend_on_how_far_apart_tokens_stand():
    model = tracer.load("llama")
    with torch.no_grad():
        first, both = model.trace(text="aaaa", prove=False), model.trace(text="aaaaaaaa", prove=False)
    scores = both.attention(0, 0), first.attention(0, 0)
    ratio = [(one[0, -1, -1] / one[0, -1, -2]).item() for one in scores]
    assert ratio[0] == pytest.approx(ratio[1], rel=1e-3)


def test_the_shipped_card_is_of_the_shipped_weights():
    card, file = models.card("llama"), training.WEIGHTS_FOLDER / "llama.safetensors"
    model = tracer.load("llama")
    assert model.sizes == card["sizes"] and file.stat().st_size < 6_000_000 and card["loss"] <= 1.55
    assert sum(len(set(token)) for token in write(model, "ROMEO:\n", 3)) == 3


def test_the_recipe_builds_what_it_trains():
    recipe = Recipe(sizes={"V": 65, "T_max": 8, "D": 16, "h": 2, "h_kv": 1, "d_ff": 24, "L": 1})
    net = recipe.build(0)
    groups = [group for one in recipe.optimizers(net) for group in one.param_groups]
    assert sum(p.numel() for group in groups for p in group["params"]) == sum(p.numel() for p in net.parameters())
    assert not net.block1.mlp.contract.weight.any()


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="h=4 does not fit h_kv=3"):
        tracer.load("llama", h_kv=3)
    with pytest.raises(ValueError, match="D=12 does not fit h=4"):
        tracer.load("llama", D=12)


HINTED_MODELS = {
    "clip": ({},),
    "llama": ({}, {"tied": False}),
    "nanogpt": ({}, {"tied": False, "mask": "bidirectional"}),
    "saliency": ({},),
    "segmenter": ({},),
    "transformer": ({"mask": "causal"}, {"positions": "relative"}),
    "vit": ({},),
    "vit-note": ({},),
    "vit-text": ({"types": True}, {"tied": False, "mask": "prefix"}, {"mask": "bidirectional"}),
    "mae": ({},),
}


def test_every_model_with_hints_is_looked_at():
    assert set(HINTED_MODELS) == {name for name in models.names() if models.spec_of(name).hints}


@pytest.mark.parametrize("name", HINTED_MODELS)
def test_no_hint_is_idle(name, monkeypatch):
    books = []
    monkeypatch.setattr(tracing, "derive", lambda *given: books.append(derivation.derive(*given)) or books[-1])
    for options in HINTED_MODELS[name]:
        tracer.load(name, L=1, **options).trace(prove=False)
    assert books and idle(models.spec_of(name).hints, books) == []
    assert idle((Hint("nowhere"),), books) == [Hint("nowhere")]


class Small(nn.Module):
    """A plain module, as somebody would add it."""

    def __init__(self, *, D: int, d_ff: int):
        super().__init__()
        self.expand, self.contract, self.norm = nn.Linear(D, d_ff), nn.Linear(d_ff, D), nn.LayerNorm(D)

    def forward(self, x):
        return self.norm(x + self.contract(torch.relu(self.expand(x))))


def test_a_plain_module_with_a_spec_is_a_model():
    """Derive a model without an equation by hand, as the guide says; a hint adds a title, a letter and a reason."""

    def prepare(model, image, text, given):
        drawn = torch.randn(given["B"], given["T"], model.sizes["D"])
        return tracer.spec.spec.Inputs((drawn,), sizes=given)

    spec = Spec(
        net=Small,
        takes=(),
        sizes={"D": 6, "d_ff": 10},
        derived={},
        names=("B", "T", "D", "d_ff"),
        probes=(
            {"B": 2, "T": 5, "D": 7, "d_ff": 11},
            {"B": 3, "T": 7, "D": 13, "d_ff": 19},
            {"B": 5, "T": 11, "D": 8, "d_ff": 17},
        ),
        example=lambda at: (torch.randn(at["B"], at["T"], at["D"]),),
        prepare=lambda model, image, text, given: prepare(model, image, text, {"T": 4, **given}),
        result=lambda model, inputs, output: {},
        segments=lambda at: (),
        runs=("B", "T"),
        hints=(
            Hint(
                "expand.*",
                id="expand",
                title="Widen",
                letter=r"\mathbf{U}_w",
                why="More room.",
                source="Nobody 2026, section 1",
            ),
        ),
    )
    model = Model.of("small", spec, Small(D=6, d_ff=10), dict(spec.sizes), weights="random")
    trace = model.trace()
    assert trace.coverage == 1 and {step.verdict for step in trace.steps} == {"verified"}
    first = trace.steps[0]
    assert (first.id, first.title, first.symbol) == ("expand", "Widen", r"\mathbf{U}_w")
    assert first.symbolic == ("B", "T", "d_ff") and first.why == "More room. Source: Nobody 2026, section 1."
