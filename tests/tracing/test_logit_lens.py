"""Logit lens: the answer of the model's own code when its remaining blocks are skipped, verified like any line."""

from dataclasses import replace

import pytest
import torch

import tracer
from tests.support.sweeping import cases
from tracer.tracing.logit_lens import LogitLens

ENDS = {"vit": "block6.mlp.residual", "nanogpt": "block4.mlp.residual", "hf:gpt2": "transformer.h.1.mlp.residual"}


def logits(output):
    return (output if isinstance(output, torch.Tensor) else output["logits"]).double()


@pytest.fixture(scope="module")
def lens(plain):
    return LogitLens(plain)


@pytest.mark.parametrize("name", cases(ENDS, ("nanogpt", "hf:gpt2")))
def test_the_lens_is_the_answer_of_a_run_whose_last_blocks_are_skipped(name):
    model = tracer.load(name)
    trace = model.trace(keep=2**26)
    lens = LogitLens(trace)
    assert lens.proof.verdict == "verified" and lens.depths[0].layer is None and lens.depths[-1].id == ENDS[name]
    torch.testing.assert_close(lens.scores(len(lens.depths) - 1), logits(trace.output), rtol=1e-5, atol=1e-5)
    for depth, (id, _) in enumerate(lens.depths[:-1]):
        skipped = model.trace(change={ENDS[name]: f"take({id})"}, prove=False)
        torch.testing.assert_close(lens.scores(depth), logits(skipped.output), rtol=1e-4, atol=1e-4)


def test_the_scores_of_a_patch_are_those_of_a_run_in_which_it_stands_in_the_place_of_cls(vit, lens):
    turned = vit.trace(change={ENDS["vit"]: lambda x: x.roll(-7, dims=1)}, prove=False)
    found = lens.token_scores(len(lens.depths) - 1)
    torch.testing.assert_close(found[7], turned.output[0].double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[:1], lens.scores(len(lens.depths) - 1))
    assert found.shape == (65, 10)


def test_its_equation_is_the_composition_of_the_last_lines(lens):
    assert lens.lines == ("norm", "cls", "logits")
    assert lens.latex.startswith(r"\mathbf{Z}^{(\ell)} = ") and r"\mu(\mathbf{X}^{(\ell)})" in lens.latex
    assert r"\mathbf{W}_{\mathrm{cls}}" in lens.latex and r"\mathbf{X}_f" not in lens.latex


def test_a_wrong_head_is_not_verified(vit):
    trace = vit.trace()
    found = {step.line.id: step.line for step in trace.later.derived_steps}
    bare = found["block6.mlp.residual"].tensor
    wrong = trace.later.rewrite(lambda line: bare if line.id == "norm" else line.equation)
    assert LogitLens(replace(trace, later=wrong)).proof.verdict == "refuted"


def test_scores_of_one_token_are_those_of_all():
    model = tracer.load("nanogpt")
    lens = LogitLens(model.trace())
    torch.testing.assert_close(lens.scores(2, slice(-1, None)), lens.scores(2)[:, -1:])


@pytest.mark.parametrize(
    ("name", "part", "how", "message"),
    [
        ("mae", "encoder", {}, "no head to apply earlier"),
        ("vit", "", {"prove": False}, "the equations of this run are not at hand"),
        ("segmenter", "", {}, "several tokens at once"),
        ("vit", "", {"keep": 0}, "was not kept"),
    ],
)
def test_a_run_without_a_lens_is_refused_in_a_sentence(name, part, how, message):
    with pytest.raises(ValueError, match=message) as error:
        LogitLens(tracer.load(name).trace(**how), part).token_scores(0)
    assert "\n" not in str(error.value)
