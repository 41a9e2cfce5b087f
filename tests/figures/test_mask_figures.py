"""Pictures of masks and answers, by hand-computed expectations."""

import base64
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import tracer
from tests.support.messages import unpack
from tracer.attention.masks import RowSums, row, visible
from tracer.figures import envelope, mask_payload, predictions
from tracer.figures.drawing import MASK
from tracer.record import Segment, Trace

SEGMENTS = (Segment("image", 0, 2), Segment("text", 2, 5))


def test_tokens_are_named_by_segment_or_word():
    assert mask_payload.names(5, SEGMENTS, ("a", "red")) == ["patch 1", "patch 2", "3: 'a'", "4: 'red'", "text 3"]
    assert mask_payload.names(2, (Segment("CLS", 0, 1),), ()) == ["CLS", "2"]


def test_numbered_names_count_tokens_over_the_whole_sequence():
    segments = (Segment("CLS", 0, 1), Segment("visible", 1, 3, places=(9, 7)), Segment("text", 3, 4))
    found = mask_payload.names(5, segments, ("red",), numbered=True)
    assert found == ["CLS (token 1)", "patch 10 (token 2)", "patch 8 (token 3)", "4: 'red'", "token 5"]


def test_visible_patches_are_named_by_their_place_in_the_image():
    visible = Segment("visible", 0, 3, "encoder", places=(9, 0, 7)), Segment("image", 0, 4, "decoder")
    assert mask_payload.names(4, visible[:1], ()) == ["patch 10", "patch 1", "patch 8", "4"]
    trace = Trace("hand", (), segments=visible, words=(" ",))
    assert mask_payload.labels(trace, "encoder", 3) == ["patch 10", "patch 1", "patch 8"]
    assert mask_payload.labels(trace, "decoder", 2) == ["patch 1", "patch 2"]
    assert mask_payload.labels(Trace("hand", (), segments=(Segment("text", 0, 1),), words=(" ",)), None, 1) == [
        "1: '␣'"
    ]


def sent(*args, **options) -> dict:
    """Return what a browser gets of a mask."""
    return unpack(envelope.pack(mask_payload.build(*args, **options)))


@pytest.mark.parametrize(("name", "part"), [("vit-text", None), ("clip", "image")])
def test_the_mask_is_sent_cell_by_cell_with_the_rows_of_every_head(name, part):
    trace = tracer.load(name).trace()
    cells = visible(trace, part=part)
    header = sent(trace, cells, part=part, start=3, alt="a mask")
    heads = header["heads"]
    assert header["sent"] == [0, heads, 0, cells.shape[0]] and (header["start"], header["alt"]) == (3, "a mask")
    assert np.array_equal(header["open"], cells.numpy())
    for head in (0, heads - 1):
        theirs = row(trace, 5, head=head, part=part)
        for name in ("before", "weights"):
            expected = getattr(theirs, name).numpy()
            assert np.isfinite(expected).all()  # scores before the mask have none of its −∞
            assert np.allclose(header[name][head, 5], expected, atol=2e-3 * np.abs(expected).max())
    assert header["names"][5] == mask_payload.labels(trace, part, cells.shape[0], numbered=True)[5]
    assert "differs from 1 by at most" in header["kept"]["0"]


def test_both_sides_of_an_attention_across_have_their_own_names_and_segments():
    trace = tracer.load("hf:t5").trace()
    words, across = len(trace.words), next(a for a in trace.attentions if a.keys != a.queries)
    header = sent(trace, visible(trace, across.layer), layer=across.layer)
    assert (len(header["names"]), len(header["key_names"])) == (across.queries, words)
    assert header["names"][0] == "token 1" and header["key_names"][0] == f"1: {trace.words[0]!r}"
    assert (header["segments"], header["key_segments"]) == ([], [[0, words, f"{words} text", "tokens"]])
    header = sent(trace, visible(trace, 0))
    assert header["names"] == header["key_names"] and header["segments"] == header["key_segments"] != []


def test_of_a_large_run_the_rows_that_are_asked_for_are_sent(monkeypatch):
    trace = tracer.load("nanogpt").trace()
    cells = visible(trace)
    queries, keys = cells.shape
    monkeypatch.setattr(mask_payload, "MAX_BYTES", 4 * keys * 5)
    assert not mask_payload.fits(trace)
    header = sent(trace, cells, wanted=(1, queries - 1))
    assert header["sent"] == [1, 1, queries - 5, 5] and list(header["kept"]) == ["1"]
    theirs = row(trace, queries - 1, head=1)
    assert np.allclose(header["weights"][0, -1], theirs.weights.numpy(), atol=1e-3)


def test_segments_are_written_in_words():
    spans = [
        mask_payload._span(one) for one in (Segment("CLS", 0, 1), Segment("image", 1, 65), Segment("text", 65, 66))
    ]
    assert spans == [("CLS", ""), ("64 image", "tokens"), ("1 text", "token")]
    cells = torch.ones(5, 5).tril().bool()
    assert "15 of 25 cells are open" in mask_payload.describe(cells, "causal")


def test_a_label_map_has_a_colour_for_each_class():
    figure = predictions.label_map([[0, 1], [2, 1]], ["ground", "circle", "square", "star"])
    data = figure.data[0]
    assert len({colour for _, colour in data.colorscale}) == 4 and (data.zmin, data.zmax) == (-0.5, 3.5)
    assert data.text[1][0] == "square" and not figure.layout.images
    legend = {entry.name: entry.marker.color for entry in figure.data[1:]}
    assert list(legend) == ["ground 25.0\u00a0%", "circle 50.0\u00a0%", "square 25.0\u00a0%"]
    assert list(legend.values()) == [data.colorscale[2 * number][1] for number in range(3)]


def test_a_label_map_lies_over_the_photo_pixel_by_pixel():
    photo = Image.fromarray(np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255]]] * 2, dtype=np.uint8))
    figure = predictions.label_map([[0, 1, 0], [0, 1, 1]], ["ground", "circle"], photo, 0.25)
    assert figure.data[0].opacity == 0.25
    (under,) = figure.layout.images
    assert (under.x, under.y, under.sizex, under.sizey, under.layer) == (0.5, 0.5, 3, 2, "below")
    assert (tuple(figure.layout.xaxis.range), tuple(figure.layout.yaxis.range)) == ((0.5, 3.5), (2.5, 0.5))
    shown = Image.open(BytesIO(base64.b64decode(under.source.partition(",")[2]))).convert("RGB")
    assert shown.size == (510, 340) and shown.getpixel((500, 330)) == (0, 0, 255)


def test_blank_tokens_can_be_seen():
    assert [predictions.visible_token(token) for token in (" ", "\n", "a")] == ["␣", "⏎", "a"]


def test_an_answer_in_one_line():
    assert predictions.short({"kind": "caption", "caption": "a red star"}) == "a red star"
    assert predictions.short({"kind": "tokens", "tokens": ["a", "b"]}) == "ab"
    assert (
        predictions.short({"kind": "next", "tokens": ["a", " "], "probabilities": [0.25, 0.75]})
        == "␣, with 75.0\u00a0%"
    )


def test_hidden_patches_are_left_empty():
    pixels = np.arange(8.0).reshape(2, 4)
    nan = np.nan
    found = predictions.visible(pixels, [1, 2], 2, 2)
    assert np.array_equal(found, [[nan, nan, 2, 3], [4, 5, nan, nan]], equal_nan=True)
    (below,) = predictions.panel(found).layout.shapes
    assert (below.fillcolor, below.layer, below.x1, below.y1) == (MASK[0], "below", 4.5, 2.5)
    assert not predictions.panel(pixels).layout.shapes


def test_a_panel_is_as_large_as_its_matrix():
    figure = predictions.panel(np.arange(6.0).reshape(2, 3), "error", "patch")
    assert (tuple(figure.layout.xaxis.range), tuple(figure.layout.yaxis.range)) == ((0.5, 3.5), (2.5, 0.5))
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("patch column", "patch row")
    assert figure.data[0].colorbar.title.text == "error" and not predictions.panel(np.ones((1, 1))).data[0].showscale


class Masked(torch.nn.Module):
    """Causal attention of one head whose mask has a number in the place of -∞, added or written over the scores."""

    def __init__(self, number: float, over: bool = False):
        super().__init__()
        self.packed = torch.nn.Linear(6, 18)
        self.number, self.over = number, over

    def forward(self, x):
        q, k, v = self.packed(x).chunk(3, dim=-1)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        scores = q @ k.mT / 6**0.5
        if self.over:
            scores = scores.masked_fill(later, self.number)
        else:
            scores = scores + torch.zeros_like(scores).masked_fill(later, self.number)
        return scores.softmax(-1) @ v


@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize(
    ("number", "written", "acts"),
    [(float("-inf"), "−∞", False), (-1e9, "−10⁹", True), (-3e38, "−3.0 × 10³⁸", True), (-40.0, "−40", False)],
)
def test_the_number_of_a_mask_is_the_one_that_the_code_has(number, written, acts, over):
    torch.manual_seed(0)
    trace = tracer.trace(Masked(number, over), torch.randn(1, 5, 6), symbols={"B": 0, "T": 1})
    header = sent(trace, visible(trace))
    said = header["mask"]
    assert (said["open"], said["closed"]) == ("0", written)
    assert said["title"].startswith(f"the mask: 0 where open, {written} where closed")
    closed = trace.attention(0)[0, 0].triu(1)
    assert ("acts as −∞" in said["title"]) == (acts and not closed.any()) == acts


def test_a_mask_of_many_numbers_names_none():
    class Biased(Masked):
        def forward(self, x):
            q, k, v = self.packed(x).chunk(3, dim=-1)
            rows, columns = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])
            bias = (columns - rows).float() * 0.1
            return (q @ k.mT + bias.masked_fill(columns > rows, float("-inf"))).softmax(-1) @ v

    trace = tracer.trace(Biased(0), torch.randn(1, 5, 6), symbols={"B": 0, "T": 1})
    header = sent(trace, visible(trace))
    assert header["mask"] == {"open": "open", "closed": "closed", "title": "the mask: open or closed"}
    assert row(trace, 2).mask.tolist()[:3] == pytest.approx([-0.2, -0.1, 0])


def test_what_the_rows_keep_to_is_said_of_each_head(monkeypatch):
    monkeypatch.setattr("tracer.attention.masks.rows", lambda *a, head, **k: RowSums(float(head), None))
    trace = tracer.load("nanogpt", D=9, h=3, d_ff=8, L=1).trace(text="abcde", prove=False)
    header = sent(trace, visible(trace))
    assert list(header["kept"]) == ["0", "1", "2"]
    for head, said in header["kept"].items():
        assert f"differs from 1 by at most {head}" in said
