"""Pictures of masks and answers, by hand-computed expectations."""

import base64
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from tracer.figures import answers, masks
from tracer.figures.colours import MASK
from tracer.record import Segment, Trace

SEGMENTS = (Segment("image", 0, 2), Segment("text", 2, 5))


def test_tokens_are_named_by_segment_or_word():
    assert masks.names(5, SEGMENTS, ("a", "red")) == ["image 0", "image 1", "2: 'a'", "3: 'red'", "text 2"]
    assert masks.names(2, (Segment("CLS", 0, 1),), ()) == ["CLS", "1"]


def test_numbered_names_count_tokens_over_the_whole_sequence():
    segments = (Segment("CLS", 0, 1), Segment("visible", 1, 3, places=(9, 7)), Segment("text", 3, 4))
    found = masks.names(5, segments, ("red",), numbered=True)
    assert found == ["CLS (token 0)", "image 9 (token 1)", "image 7 (token 2)", "3: 'red'", "token 4"]


def test_segments_are_written_in_words_on_both_axes():
    segments = (Segment("CLS", 0, 1), Segment("image", 1, 65), Segment("text", 65, 66))
    expected = ["CLS", "64 image<br>tokens", "1 text<br>token"]
    assert masks.spans(segments) == expected
    axes = masks.matrix(torch.ones(66, 66).bool(), segments).layout
    assert list(axes.xaxis.ticktext) == list(axes.yaxis.ticktext) == expected
    assert list(axes.xaxis.tickvals) == list(axes.yaxis.tickvals) == [0, 32.5, 65]
    assert masks.matrix(torch.ones(6, 6).bool(), ()).layout.xaxis.ticktext is None  # plotly's own numbers


def test_visible_patches_are_named_by_their_place_in_the_image():
    visible = Segment("visible", 0, 3, "encoder", places=(9, 0, 7)), Segment("image", 0, 4, "decoder")
    assert masks.names(4, visible[:1], ()) == ["image 9", "image 0", "image 7", "3"]
    trace = Trace("hand", (), segments=visible, words=(" ",))
    assert masks.labels(trace, "encoder", 3) == ["image 9", "image 0", "image 7"]
    assert masks.labels(trace, "decoder", 2) == ["image 0", "image 1"]
    assert masks.labels(Trace("hand", (), segments=(Segment("text", 0, 1),), words=(" ",)), None, 1) == ["0: '␣'"]


def test_the_picture_is_the_mask_cell_by_cell():
    cells = torch.ones(5, 5).tril().bool()
    figure = masks.matrix(cells, SEGMENTS, query=3)
    assert np.array_equal(np.asarray(figure.data[0].z), cells.numpy())
    lines = [shape for shape in figure.layout.shapes if shape.type == "line"]
    assert {(line.x0, line.y0) for line in lines} >= {(1.5, 0), (0, 1.5)}
    frame = next(shape for shape in figure.layout.shapes if shape.type == "rect")
    assert (frame.y0, frame.y1, frame.x0, frame.x1) == (2.5, 3.5, -0.5, 4.5)
    (arrow,) = figure.layout.annotations
    assert (arrow.x, arrow.xref, arrow.y) == (1, "x domain", 3)
    assert figure.layout.height is None  # as high as its place
    assert figure.data[0].text[2][0] == "text 0 (token 2) may look at image 0 (token 0)"
    assert "15 of 25 cells are open" in masks.describe(cells, "causal")


def test_a_row_shows_scores_mask_and_weights():
    inf = float("inf")
    figure = masks.row(torch.tensor([1.0, 2, 3]), torch.tensor([0, 0, -inf]), torch.tensor([0.3, 0.7, 0]), ())
    bars = [trace for trace in figure.data if trace.type == "bar"]
    assert list(bars[0].y) == [1, 2, 3] and np.allclose(bars[1].y, [0.3, 0.7, 0])
    strip = next(trace for trace in figure.data if trace.type == "heatmap")
    assert np.asarray(strip.z).tolist() == [[1, 1, 0]]


def test_a_label_map_has_a_colour_for_each_class():
    figure = answers.label_map([[0, 1], [2, 1]], ["ground", "circle", "square", "star"])
    data = figure.data[0]
    assert len({colour for _, colour in data.colorscale}) == 4 and (data.zmin, data.zmax) == (-0.5, 3.5)
    assert data.text[1][0] == "square" and not figure.layout.images
    legend = {entry.name: entry.marker.color for entry in figure.data[1:]}
    assert list(legend) == ["ground 25.0 %", "circle 50.0 %", "square 25.0 %"]
    assert list(legend.values()) == [data.colorscale[2 * number][1] for number in range(3)]


def test_a_label_map_lies_over_the_photo_pixel_by_pixel():
    photo = Image.fromarray(np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]] * 2, dtype=np.uint8))
    figure = answers.label_map([[0, 1, 0], [0, 1, 1]], ["ground", "circle"], photo, 0.25)
    assert figure.data[0].opacity == 0.25
    (under,) = figure.layout.images
    assert (under.x, under.y, under.sizex, under.sizey, under.layer) == (-0.5, -0.5, 3, 2, "below")
    assert (tuple(figure.layout.xaxis.range), tuple(figure.layout.yaxis.range)) == ((-0.5, 2.5), (1.5, -0.5))
    shown = Image.open(BytesIO(base64.b64decode(under.source.partition(",")[2]))).convert("RGB")
    assert shown.size == (510, 340) and shown.getpixel((500, 330)) == (0, 0, 255)


def test_blank_tokens_can_be_seen():
    assert [answers.shown(token) for token in (" ", "\n", "a")] == ["␣", "⏎", "a"]


def test_an_answer_in_one_line():
    assert answers.short({"kind": "caption", "caption": "a red star"}) == "a red star"
    assert answers.short({"kind": "tokens", "tokens": ["a", "b"]}) == "ab"
    assert answers.short({"kind": "next", "tokens": ["a", " "], "probabilities": [0.25, 0.75]}) == "␣, with 75.0 %"


def test_hidden_patches_are_left_empty():
    pixels = np.arange(8.0).reshape(2, 4)
    nan = np.nan
    found = answers.visible(pixels, [1, 2], 2, 2)
    assert np.array_equal(found, [[nan, nan, 2, 3], [4, 5, nan, nan]], equal_nan=True)
    (below,) = answers.panel(found).layout.shapes
    assert (below.fillcolor, below.layer, below.x1, below.y1) == (MASK[0], "below", 3.5, 1.5)
    assert not answers.panel(pixels).layout.shapes


def test_a_panel_is_as_large_as_its_matrix():
    figure = answers.panel(np.arange(6.0).reshape(2, 3), "error", "patch")
    assert (tuple(figure.layout.xaxis.range), tuple(figure.layout.yaxis.range)) == ((-0.5, 2.5), (1.5, -0.5))
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("patch column", "patch row")
    assert figure.data[0].colorbar.title.text == "error" and not answers.panel(np.ones((1, 1))).data[0].showscale


def test_key_labels_are_thinned_until_they_fit():
    words = [f"{place}: 'a'" for place in range(58)]
    figure = masks.row(torch.zeros(58), torch.zeros(58), torch.ones(58) / 58, (), words)
    ticks = figure.layout.xaxis3
    assert ticks.tickvals == (0, 15, 30, 45) and ticks.ticktext == ("0: 'a'", "15: 'a'", "30: 'a'", "45: 'a'")
    assert ticks.tickangle == 0 and figure.layout.annotations[1].text == "every key is open to this query"
    assert sum(len(word) + 1 for word in ticks.ticktext) <= masks.ACROSS
    few = masks.row(torch.zeros(4), torch.zeros(4), torch.ones(4) / 4, (), words[:4]).layout.xaxis3
    assert few.tickvals == (0, 1, 2, 3)


@pytest.mark.parametrize(("top", "side"), [(0, "left"), (5, "center"), (8, "right")])
def test_the_highest_weight_has_the_name_of_its_key(top, side):
    weights = torch.full((9,), 0.05)
    weights[top] = 0.6
    figure = masks.row(torch.zeros(9), torch.zeros(9), weights, (Segment("image", 0, 9),))
    name = figure.layout.annotations[-1]
    assert (name.text, name.x, name.xanchor) == (f"image {top} (token {top})", top, side)
    assert name.y == pytest.approx(0.6) and figure.layout.yaxis3.range[1] > 0.7 and name.xref == "x3"


def test_a_large_mask_is_a_small_message():
    figure = masks.matrix(torch.ones(257, 257).tril().bool(), ())
    assert figure.data[0].text is None and "query %{y}" in figure.data[0].hovertemplate
    assert len(figure.to_json()) < 500_000
