"""One number in the browser's data: its digits, its terms, its neighbours, and the text on a mean of cells."""

import re
import time

import numpy as np
import pytest
import torch
from torch.nn import functional

import tracer
from tracer.figures import cell_payload, envelope
from tracer.figures.drawing import PAGE

SCORES = "block2.attention.scores"


def number(text: str) -> float:
    text = text.replace("−", "-").replace("∞", "inf")
    return float(text.replace(" × 10", "e").translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")))


@pytest.fixture(scope="module")
def gpt():
    return tracer.load("nanogpt").trace(text="to be or not to be")


def test_a_score_is_what_plain_pytorch_computes(vit, plain):
    """Norm, queries and keys of block 2 by torch's own functions and the weights of the module; the score by hand."""
    block, x = vit.net.block2, plain.value("block1.mlp.residual")
    attention, norm = block.attention, block.norm1
    with torch.no_grad():
        normed = functional.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)
        heads = [
            functional.linear(normed, layer.weight, layer.bias)[0].view(65, 4, 32).transpose(0, 1)
            for layer in (attention.query, attention.key)
        ]
    q, k = heads[0][1, 5], heads[1][1, 2]
    shown = cell_payload.build(plain, f"{SCORES}:0.1.5.2")
    assert number(shown["value"]) == pytest.approx((q @ k / 32**0.5).item(), rel=1e-5)
    products = sorted((q * k / 32**0.5).tolist(), key=abs, reverse=True)
    assert [number(row["share"]) for row in shown["rows"]] == pytest.approx(products[:24], rel=1e-3)
    for row in shown["rows"]:
        feature = row["index"][-1]
        assert row["index"] == [0, 1, 5, feature] and row["by"]["index"] == [0, 1, 2, feature]
        assert number(row["value"]) == pytest.approx(q[feature].item(), rel=1e-3)
        assert number(row["by"]["value"]) == pytest.approx(k[feature].item(), rel=1e-3)
    rest = sum(products[24:])
    assert shown["more"]["count"] == 8 and number(shown["more"]["share"]) == pytest.approx(rest, rel=1e-3)


@pytest.mark.parametrize("name", ["vit", "nanogpt"])
def test_shown_terms_add_up_to_the_cell_in_every_kind_of_step(name, plain, gpt):
    trace = {"vit": plain, "nanogpt": gpt}[name]
    kinds = {re.sub(r"\d+", "", step.id): step for step in trace.steps}
    for step in kinds.values():
        index = [size // 2 for size in step.shape]
        begun = time.process_time()
        shown = cell_payload.build(trace, f"{step.id}:{'.'.join(map(str, index))}")
        assert time.process_time() - begun < 0.3, step.id
        assert len(envelope.pack(shown)) < PAGE // 20, step.id
        value = trace.value(step)[tuple(index)].item()
        assert number(shown["value"]) == pytest.approx(value, rel=1e-6)
        if shown["rows"] and all(row["share"] for row in shown["rows"]) and np.isfinite(value):
            total = sum(number(row["share"]) for row in shown["rows"])
            total += number(shown["more"]["share"]) if shown["more"] else 0
            size = sum(abs(number(row["share"])) for row in shown["rows"])
            assert total == pytest.approx(value, abs=2e-3 * max(size, abs(value))), step.id


def test_places_count_from_one_on_screen_and_from_zero_in_code(plain):
    shown = cell_payload.build(plain, f"{SCORES}:0.1.5.2")
    assert shown["place"] == "[1, 2, 6, 3]" and shown["where"].startswith("head 2; query 6: patch 5 ")
    assert shown["code"] == f"trace.cell('{SCORES}', (0, 1, 5, 2))" and shown["index"] == [0, 1, 5, 2]
    weight = cell_payload.build(plain, "parameter head.weight:2.3")  # [out, in], which equations print as [in, out]
    assert weight["place"] == "[4, 3]" and "a weight that the model learned" in weight["ends"]
    pixel = cell_payload.build(plain, "input image:0.1.4.5")
    assert pixel["where"] == "green, row of pixels 5, pixel 6" and "the photo" in pixel["ends"]
    assert [user["text"] for user in pixel["users"]] == ["One cell: patch 10, pixel value 5"]


def test_the_way_of_a_character_ends_at_it(gpt):
    token = cell_payload.build(gpt, "input tokens:0.3")
    assert token["ends"] == f"The way ends here: this is the id of token 4, “{gpt.words[3]}”."
    assert token["users"][0]["text"] == f"{gpt.step('embedding').shape[-1]} cells: token 4, all 128 features"


def test_a_mean_of_cells_says_that_it_is_one_and_lists_them(plain):
    weights = plain.value("block1.attention.weights")[0, :, 5, 2].double()
    shown = cell_payload.build(plain, "block1.attention.weights:0.0-3.5.2")
    assert shown["mean"] == "This is a mean of 4 cells: the picture has fewer cells than the tensor."
    assert number(shown["value"]) == pytest.approx(weights.mean().item(), rel=1e-6)
    assert sum(number(row["share"]) for row in shown["rows"]) == pytest.approx(weights.mean().item(), rel=2e-3)
    assert {tuple(row["index"]) for row in shown["rows"]} == {(0, head, 5, 2) for head in range(4)}
    assert eval(shown["code"], {"trace": plain}).item() == pytest.approx(weights.mean().item(), rel=1e-6)
    assert number(cell_payload.value(plain, "block1.attention.weights:0.0-3.5.2")) == pytest.approx(
        weights.mean().item(), rel=1e-6
    )


def test_the_exact_value_has_all_digits(plain):
    tensor = plain.value("block1.mlp.hidden")
    for index in ((0, 0, 0), (0, 64, 511), (0, 30, 7)):
        text = cell_payload.value(plain, f"block1.mlp.hidden:{'.'.join(map(str, index))}")
        assert np.float32(number(text)) == tensor[index].item()


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("nothing", "'nothing' is not a cell, expected a name, a colon and its index."),
        ("block9:0", "No step 'block9' in this trace; the first is 'patches'."),
        ("logits:0.10", "(0, 10) is not a cell of 'logits', expected 2 whole numbers up to (0, 9)."),
        ("logits:0.1-10", "'logits:0.1-10' is not a box of that tensor, whose shape is [1, 10]."),
        ("logits:0.5-3", "'logits:0.5-3' is not a box of that tensor, whose shape is [1, 10]."),
        ("parameter w:0", "No 'parameter w' in this run: the model has no such parameter: 'w'."),
    ],
)
def test_what_is_no_cell_is_quoted(plain, place, problem):
    assert cell_payload.build(plain, place) == {"problem": problem}
    assert cell_payload.value(plain, place) == ""


def test_a_saved_run_has_its_numbers_and_says_why_the_way_ends(plain, tmp_path):
    plain.save(tmp_path / "run.safetensors")
    saved = tracer.open(tmp_path / "run.safetensors")
    shown = cell_payload.build(saved, f"{SCORES}:0.1.5.2")
    assert shown["value"] == cell_payload.build(plain, f"{SCORES}:0.1.5.2")["value"]
    assert shown["note"] == cell_payload.SAVED_RUN_NOTE and not shown["rows"] and not shown["ends"]
    assert cell_payload.build(saved, "logits:0.10")["problem"].startswith("(0, 10) is not a cell of 'logits'")
