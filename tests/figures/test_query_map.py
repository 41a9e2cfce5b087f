"""Map of one query, which is drawn at any length."""

import itertools

import numpy as np
import pytest

import tracer
from tracer.attention import places
from tracer.figures import attention_maps


@pytest.mark.parametrize("head", ["mean", "2"])
def test_a_row_is_that_of_the_weights_that_ran(plain, head):
    record = plain.attentions[4]
    weights = plain.value("block5.attention.weights")[0, :, 7].numpy()
    expected = weights.mean(0) if head == "mean" else weights[int(head)]
    assert attention_maps.row(plain, record, head, 7) == pytest.approx(expected, rel=1e-5)


def test_the_order_of_luminance_on_the_photo_is_the_order_of_weights(plain):
    patches = places(plain)
    weights = attention_maps.row(plain, plain.attentions[-1], "mean", 0)
    image = attention_maps.over_photo(plain, patches, weights).astype(float) @ (0.2126, 0.7152, 0.0722)
    left, top, right, bottom = plain.picture.crop
    means = []
    for patch in range(64):
        row, column = divmod(patch, 8)
        y = [round(top + (bottom - top) * at / 8) for at in (row, row + 1)]
        x = [round(left + (right - left) * at / 8) for at in (column, column + 1)]
        means.append(image[y[0] : y[1], x[0] : x[1]].mean())
    ours = np.array([weights[token] for token in sorted(patches, key=patches.__getitem__)])
    order = np.argsort(-ours)[:8]
    for brighter, darker in itertools.combinations(order, 2):  # the photo shows through
        assert means[brighter] > means[darker] or ours[darker] > 0.8 * ours[brighter]
    assert max(means) == means[order[0]]


def test_a_run_without_a_photo_has_no_map_over_it():
    trace = tracer.load("nanogpt", D=8, h=2, d_ff=8, L=1).trace(prove=False, text="to be")
    with pytest.raises(ValueError, match="no photo"):
        attention_maps.over_photo(trace, {}, np.zeros(5))
