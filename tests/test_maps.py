"""Attention maps as the browser gets them: which layers fit the photo, and their bytes."""

import json
from io import BytesIO

import numpy as np
from PIL import Image

import tracer
from tracer.figures import colours, maps
from tracer.inputs.images import Crop, centre_crop
from tracer.record import AttentionRecord, Picture, Segment, Trace


class OneHot(Trace):
    """A run in which every query attends to exactly one token: query + 1."""

    def attention(self, layer, head=None, query=None, *, part=None):
        tokens = 1 + self.picture.rows * self.picture.columns
        return np.roll(np.eye(tokens, dtype=np.float32), 1, axis=1)[None, None]


def one_hot(rows: int, columns: int, photo: np.ndarray, crop: Crop) -> Trace:
    picture = Picture("photo", crop.box, rows, columns, 1)
    tokens = 1 + rows * columns
    segments = (Segment("CLS", 0, 1), Segment("image", 1, tokens))
    return OneHot("hand", (), picture=picture, values={"photo": photo}, segments=segments)


def test_maps_of_other_sizes_are_left_out():
    def record(layer, queries, keys, problem="", heads=2):
        return AttentionRecord(layer, "", "", 0, heads, queries, keys, "", "", (), problem=problem)

    records = (record(0, 7, 7), record(1, 7, 9), record(2, 7, 7, "lost"), record(3, 7, 7, heads=3), record(4, 7, 7))
    trace = Trace("hand", (), attentions=records, picture=Picture("photo", (0, 0, 1, 1), 2, 3, 1))
    assert maps.layers(trace) == [0, 4]
    assert maps.rollout(trace, [0, 4]) is None
    assert maps.layers(Trace("hand", (), attentions=records)) == []
    assert maps.layers(Trace("hand", ())) == []
    assert maps.fit(trace, [0, 4])
    assert not maps.fit(Trace("hand", (), attentions=(record(0, 2000, 2000),)), [0])


def test_maps_of_each_tower_are_its_own():
    model = tracer.load("mae", H=16, W=16, P=8, D=8, h=2, d_ff=8, L=2, L_dec=1)
    trace = model.trace(prove=False, N_v=4)
    assert maps.layers(trace, "encoder") == [] and maps.layers(trace, "decoder") == [0]
    data = maps.pack(trace, [0], maps.rollout(trace, [0], "decoder"), "decoder")
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    assert (header["part"], header["tokens"], header["first"], header["others"]) == ("decoder", 4, 0, [])
    weights = np.frombuffer(data, "<f4", 2 * 16, 4 + length).reshape(2, 4, 4)
    assert np.array_equal(weights, trace.attention(0, part="decoder")[0].numpy())


def test_the_browser_gets_weights_photo_and_crop():
    photo = np.full((40, 100, 3), 200, np.uint8)
    _, crop = centre_crop(Image.fromarray(photo), 8, 12)
    data = maps.pack(one_hot(2, 3, photo, crop), [0])
    length = int.from_bytes(data[:4], "little")
    header = json.loads(data[4 : 4 + length])
    assert length % 4 == 0
    assert header["photo"] == [100, 40]
    assert header["crop"] == [20, 0, 80, 40]
    assert (header["rows"], header["columns"], header["first"], header["tokens"]) == (2, 3, 1, 7)
    assert header["others"] == [["CLS", 0]]
    weights = np.frombuffer(data, "<f4", 49, 4 + length).reshape(7, 7)
    assert weights[3].tolist() == [0, 0, 0, 0, 1, 0, 0]
    rest = data[4 + length + 4 * 49 :]
    assert rest[:768] == colours.table()
    assert Image.open(BytesIO(rest[768:])).size == (100, 40)
    assert len(rest) - 768 == header["jpeg"]


def test_tokens_that_are_no_patch_have_a_name_of_their_own():
    segments = (Segment("image", 0, 4), Segment("text", 4, 7))
    picture = Picture("photo", (0, 0, 1, 1), 2, 2, 0)
    trace = Trace("hand", (), picture=picture, segments=segments, words=("<begin>", "red", "red"))
    assert maps.others(trace) == [("4: '<begin>'", 4), ("5: 'red'", 5), ("6: 'red'", 6)]
