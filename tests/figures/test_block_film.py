"""A block of the film, expanded: every step is a beat, its pictures are the tensors, and its factors multiply to it."""

import re

import numpy as np
import pytest

import tracer
from tests.support.messages import unpack
from tests.support.sweeping import cases
from tracer.figures import envelope
from tracer.figures.drawing import AMBER
from tracer.figures.film import block_film, message
from tracer.figures.film.storyboard import Storyboard, storyboard
from tracer.figures.tensors import reduce
from tracer.verify import small

MODELS = ("vit", "nanogpt", "llama", "vit-text", "segmenter", "mae", "clip", "transformer")
MOST = 250_000
"""Bytes of a message."""


@pytest.fixture(scope="module")
def boards() -> dict[str, Storyboard]:
    return {name: storyboard(tracer.load(name).trace()) for name in MODELS}


def blocks(board: Storyboard) -> list[str]:
    return [name for name, beat in zip(message.ids(board), board.beats, strict=True) if beat.number]


def pack_and_unpack(board: Storyboard, name: str, **options) -> dict:
    data = envelope.pack(block_film.build(board, name, message.ids(board), **options))
    assert len(data) <= MOST
    return unpack(data)


def values(header: dict, index: int) -> np.ndarray:
    """Return the numbers that a picture shows, `[heads, rows, columns]`, read back from its bytes and scales."""
    picture = header["pictures"][index]
    cells = picture["cells"]
    low, high = (np.array([scale[end] for scale in picture["scales"]])[:, None, None] for end in (0, 1))
    return np.where(cells == block_film.EMPTY_BYTE, np.nan, low + cells / (block_film.EMPTY_BYTE - 1) * (high - low))


@pytest.mark.parametrize("name", MODELS)
def test_every_step_of_every_block_is_a_beat_with_its_equation_and_its_proof(boards, name):
    board = boards[name]
    steps = {step.id: step for step in board.trace.steps}
    assert blocks(board)
    for block in blocks(board):
        header = pack_and_unpack(board, block)
        beat = board.beats[message.ids(board).index(block)]
        assert [each["id"] for each in header["beats"]] == list(beat.steps)
        for each in header["beats"]:
            step = steps[each["id"]]
            assert each["title"] == step.title and each["verdict"] == step.verdict == "verified"
            assert each["sentence"].startswith(f"{np.prod(step.shape):,} number")
            assert header["pictures"][each["drawn"][-1]]["full"] == [*(1, 1, *step.shape)[-2:]] or each["product"]


@pytest.mark.parametrize("name", MODELS)
def test_pictures_hold_the_tensors_of_the_run(boards, name):
    board = boards[name]
    header = pack_and_unpack(board, blocks(board)[0])
    compared = 0
    for each in header["beats"]:
        picture, tensor = header["pictures"][each["drawn"][-1]], board.trace.value(each["id"])
        if list(tensor.shape[-2:]) != picture["full"]:
            continue  # by heads, or all heads beside each other
        cells, _ = reduce(
            tensor.float().numpy().reshape(-1, *picture["full"])[: len(picture["cells"])], *picture["cells"].shape[1:]
        )
        shown = values(header, each["drawn"][-1])
        widths = np.array([scale[1] - scale[0] for scale in picture["scales"]])[:, None, None]
        closed = ~np.isfinite(cells)
        assert (np.isnan(shown) == closed).all()
        assert (np.abs(np.where(closed, 0, shown - cells)) <= 0.51 / 254 * widths + 1e-6).all(), each["id"]
        compared += 1
    assert compared >= 8


@pytest.mark.parametrize("name", MODELS)
def test_the_factors_of_a_product_multiply_to_its_result_up_to_bias_and_scale(boards, name):
    """A factor that is transposed, of another head or of another step is told by it."""
    board, tried = boards[name], 0
    beat = board.beats[message.ids(board).index(blocks(board)[0])]
    for step, drawn in block_film._scenes(board.trace, beat.steps):
        if step.product is None:
            continue
        assert len(drawn) == 3 and None not in drawn, step.id
        left, right, result = (each.matrices for each in drawn)
        heads = max(map(len, (left, right, result)))
        left, right, result = (np.repeat(each, heads // len(each), 0).astype(float) for each in (left, right, result))
        product = left @ right
        open_cells = np.isfinite(result)
        rest = [np.where(open_cells, each, np.nan) for each in (product, result)]
        bias = [np.nan_to_num(each - np.nanmean(each, (0, 1), keepdims=True)) for each in rest]
        if step.id.endswith("scores"):  # scaled, and with a mask or positions beside it, but without a bias
            bias = [np.nan_to_num(each) for each in rest]
        alike = (bias[0] * bias[1]).sum() / np.sqrt((bias[0] ** 2).sum() * (bias[1] ** 2).sum())
        assert alike > 0.999, (step.id, alike)
        tried += 1
    assert tried >= 6


LIBRARY = "hf:gpt2", "hf:gemma2", "hf:albert", "hf:mamba", "hf:siglip"


@pytest.mark.parametrize("name", cases(LIBRARY, ("hf:gpt2", "hf:albert")))
def test_each_block_of_a_library_model_opens(name):
    board = storyboard(small(name).trace())
    steps = {step.id: step for step in board.trace.steps}
    for block in blocks(board):
        header = pack_and_unpack(board, block)
        assert [each["id"] for each in header["beats"]] == list(board.beats[message.ids(board).index(block)].steps)
    scalars = [id for each in board.beats if each.number for id in each.steps if steps[id].shape == ()]
    assert bool(scalars) == (name in ("hf:gpt2", "hf:gemma2"))  # one, for a mask


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["hf:deepseek_v3"])
def test_a_factor_that_is_joined_of_parts_is_not_drawn_as_one_of_them(name):
    board = storyboard(small(name).trace())
    beat = board.beats[message.ids(board).index("block1")]
    drawn = next(drawn for step, drawn in block_film._scenes(board.trace, beat.steps) if step.id.endswith("scores"))
    step = board.trace.step(next(id for id in beat.steps if id.endswith("scores")))
    assert step.product is not None and r"\left[" in step.product[0].symbol
    for each in drawn[:-1]:  # each is drawn as the tensor that it is
        tensor = board.trace.value(each.id)
        assert each.matrices.shape[-2:] == tuple(tensor.shape[-2:])
    header = pack_and_unpack(board, "block1")
    entry = next(each for each in header["beats"] if each["id"] == step.id)
    assert not entry["product"] and "products" not in entry["sentence"]


def test_a_block_of_many_steps_keeps_to_its_size():
    board = storyboard(small("hf:convnext").trace())
    header = pack_and_unpack(board, blocks(board)[-1], room=4_000)
    assert sum(each["cells"].size for each in header["pictures"]) <= 4_000


def test_attention_weights_and_nothing_else_have_the_colour_of_attention(boards):
    header = pack_and_unpack(boards["vit"], "block3")
    coloured = {each["id"] for each in header["beats"] for drawn in each["drawn"][-1:]
                if header["pictures"][drawn]["scales"][0][2] == "attention"}  # fmt: skip
    assert coloured == {"block3.attention.weights"} and header["colours"]["attention"][-3:].tolist() == [*AMBER]


def test_a_step_says_what_its_numbers_are(boards):
    header = pack_and_unpack(boards["vit"], "block3")
    by_id = {each["id"]: each for each in header["beats"]}
    scores, weights = (by_id[f"block3.attention.{name}"]["sentence"] for name in ("scores", "weights"))
    tensor = boards["vit"].trace.value("block3.attention.scores")
    low, high = map(float, re.search(r"from (\S+) to (\S+)\. ", scores.replace("−", "-")).groups())
    assert (low, high) == pytest.approx((tensor.min().item(), tensor.max().item()), rel=1e-3)
    assert scores.startswith("16,900 numbers in 4 heads, from ")
    assert "a sum of 32 products" in scores and weights.endswith("Each row adds up to 1.")


def test_the_row_that_is_lit_is_that_of_the_token_of_the_film(boards):
    header = pack_and_unpack(boards["vit"], "block2")
    (stream,) = header["streams"]
    assert header["slots"] == list(range(65)) and stream["lanes"][stream["focus"]][0] == "CLS"
    assert header["inside"] == "block 2" and header["heads"] == 4


def test_pictures_shrink_until_they_fit(boards):
    small = pack_and_unpack(boards["vit"], "block1", room=20_000)
    large = pack_and_unpack(boards["vit"], "block1")
    areas = [sum(each["cells"].size for each in header["pictures"]) for header in (small, large)]
    assert areas[0] <= 20_000 < areas[1] <= block_film.ROOM
    assert [each["full"] for each in small["pictures"]] == [each["full"] for each in large["pictures"]]


def test_what_is_no_block_does_not_open(boards):
    names = message.ids(boards["vit"])
    with pytest.raises(LookupError, match="no beat 'block9' in this film, expected one of photo, patches"):
        block_film.build(boards["vit"], "block9", names)
    with pytest.raises(ValueError, match="the beat 'photo' is no block"):
        block_film.build(boards["vit"], "photo", names)


def test_a_product_that_is_scaled_or_has_a_bias_says_so(boards):
    header = pack_and_unpack(boards["vit"], "block1")
    said = {each["id"].removeprefix("block1."): each["sentence"] for each in header["beats"]}
    products = "products, of the lit row on the left with a column above"
    assert said["attention.scores"].endswith(f"Each is a sum of 32 {products}, divided by {32**0.5:.3g}.")
    assert said["attention.context"].endswith(f"Each is a sum of 65 {products}.")
    assert said["mlp.hidden"].endswith(f"Each is a sum of 128 {products}, plus the bias of its column.")
    left, right = np.ones((1, 3, 4)), np.arange(8.0).reshape(1, 4, 2)
    beyond = {"": 1.0, ", times 3": 3.0, ", divided by 4": 0.25}
    assert all(
        block_film._beyond_product(left, right, scale * (left @ right)) == text for text, scale in beyond.items()
    )
    other = left @ right + np.arange(6.0).reshape(1, 3, 2) ** 2
    assert block_film._beyond_product(left, right, other) == ", changed by the rest of the equation"
