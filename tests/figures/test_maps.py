"""Attention maps in the browser's data: the layers that fit the photo, and their bytes."""

from dataclasses import replace
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import tracer
from tests.support.messages import unpack
from tracer.attention import block_names
from tracer.figures import attention_maps, drawing, envelope
from tracer.inputs.images import Crop, centre_crop
from tracer.record import AttentionRecord, Picture, Segment, Trace


def one_hot(rows: int, columns: int, photo: np.ndarray, crop: Crop) -> Trace:
    """Return a run in which every query attends to exactly one token: query + 1."""
    picture = Picture("photo", crop.box, rows, columns, 1)
    tokens = 1 + rows * columns
    segments = (Segment("CLS", 0, 1), Segment("image", 1, tokens))
    next_one = torch.roll(torch.eye(tokens), 1, 0).T[None, None].contiguous()
    values = {"photo": photo, "q": 200 * torch.eye(tokens)[None, None], "k": next_one.mT.contiguous()}
    attention = AttentionRecord(0, "", "", 0, 1, tokens, tokens, "q", "k", ())
    return Trace("hand", (), attentions=(attention,), picture=picture, values=values, segments=segments)


def sent(*args, **options) -> dict:
    """Return what a browser gets of a map."""
    return unpack(envelope.pack(attention_maps.build(*args, **options)))


def test_maps_of_other_sizes_are_left_out():
    def record(layer, queries, keys, problem="", heads=2):
        return AttentionRecord(layer, "", "", 0, heads, queries, keys, "", "", (), problem=problem)

    records = (record(0, 7, 7), record(1, 7, 9), record(2, 7, 7, "lost"), record(3, 7, 7, heads=3), record(4, 7, 7))
    trace = Trace("hand", (), attentions=records, picture=Picture("photo", (0, 0, 1, 1), 2, 3, 1))
    assert attention_maps.layers(trace) == [0, 4]
    assert attention_maps.rollout(trace, [0, 4]) is None
    assert attention_maps.layers(Trace("hand", (), attentions=records)) == []
    assert attention_maps.layers(Trace("hand", ())) == []
    assert attention_maps.blocks(trace) == [0, 4]  # those over the photo
    assert attention_maps.blocks(Trace("hand", (), attentions=records)) == [0, 1, 3, 4]  # all that are not lost
    assert attention_maps.portion(trace, [0, 4]) == ([0, 4], ["0", "1"])
    assert attention_maps.portion(Trace("hand", (), attentions=(record(0, 2000, 2000),)), [0]) == ([0], ["mean"])
    assert attention_maps.portion(Trace("hand", (), attentions=records), [0, 1, 3, 4])[0] == [
        0,
        4,
    ]  # of the last one's size


def test_maps_of_each_tower_are_its_own():
    model = tracer.load("mae", H=16, W=16, P=8, D=8, h=2, d_ff=8, L=2, L_dec=1)
    trace = model.trace(prove=False, N_v=4)
    assert attention_maps.layers(trace, "encoder") == [0, 1] and attention_maps.layers(trace, "decoder") == [0]
    header = sent(trace, [0], attention_maps.rollout(trace, [0], "decoder"), "decoder")
    assert (header["part"], header["keys"], header["others"]) == ("decoder", 4, [])
    assert header["tokens"] == [0, 1, 2, 3] and header["unseen"] == []
    assert np.array_equal(header["weights"][0], trace.attention(0, part="decoder")[0].numpy())
    assert not header["masks"].size


def test_a_visible_patch_has_the_name_of_its_place_in_the_photo():
    model = tracer.load("mae", H=16, W=24, P=8, D=8, h=2, d_ff=8, L=2, L_dec=1)
    trace = model.trace(prove=False, N_v=3)
    header = sent(trace, attention_maps.blocks(trace, "encoder"), None, "encoder")
    visible = list(trace.result["visible"])
    assert header["layers"] == [0, 1] and header["crop"] == list(trace.picture.crop) and header["others"] == []
    assert header["tokens"] == [visible.index(patch) if patch in visible else None for patch in range(6)]
    assert (header["tower"], header["unseen"]) == ("encoder", [p for p in range(6) if p not in visible])
    assert header["names"] == [f"patch {patch + 1} (row {patch // 3 + 1}, column {patch % 3 + 1})" for patch in visible]
    assert header["marks"] == [f"patch {patch + 1}" for patch in visible]


def test_patches_whose_places_are_not_recorded_are_not_laid_over_the_photo():
    """As in files that were saved before places were: attention is there from token to token."""
    model = tracer.load("mae", H=16, W=24, P=8, D=8, h=2, d_ff=8, L=2, L_dec=1)
    trace = model.trace(prove=False, N_v=3)
    older = replace(trace, segments=tuple(replace(segment, places=()) for segment in trace.segments))
    assert attention_maps.layers(older, "encoder") == [] and attention_maps.blocks(older, "encoder") == [0, 1]
    header = sent(older, [0, 1], None, "encoder")
    assert "photo" not in header and "jpeg" not in header and not any("row" in name for name in header["names"])
    assert np.array_equal(header["weights"][1], trace.attention(1, part="encoder")[0].numpy())
    assert sent(older, [0], None, "decoder")["unseen"] == []


def test_a_token_of_the_decoder_that_no_pixels_made_is_named_a_mask_token():
    model = tracer.load("mae", H=16, W=24, P=8, D=8, h=2, d_ff=8, L=1, L_dec=1)
    trace = model.trace(prove=False, N_v=2)
    header = sent(trace, [0], None, "decoder")
    seen = trace.result["visible"]
    assert header["tokens"] == list(range(6)) and header["unseen"] == [p for p in range(6) if p not in seen]
    for patch, name in enumerate(header["names"]):
        place = f"row {patch // 3 + 1}, column {patch % 3 + 1}"
        assert name == f"patch {patch + 1} ({place}{'' if patch in seen else ', mask token'})"
    assert attention_maps.names(trace, "decoder", 2) == header["names"][:2]


def test_the_browser_gets_weights_photo_and_crop():
    photo = np.full((40, 100, 3), 200, np.uint8)
    _, crop = centre_crop(Image.fromarray(photo), 8, 12)
    header = sent(one_hot(2, 3, photo, crop), [0])
    weights, masks = header["weights"], header["masks"]
    assert header["photo"] == [100, 40]
    assert header["crop"] == [20, 0, 80, 40]
    assert (header["rows"], header["columns"], header["keys"]) == (2, 3, 7)
    assert header["tokens"] == [1, 2, 3, 4, 5, 6] and header["unseen"] == []
    assert header["others"] == [["CLS", 0]]
    assert header["names"][:3] == ["CLS", "patch 1 (row 1, column 1)", "patch 2 (row 1, column 2)"]
    assert weights[0, 0, 3].tolist() == [0, 0, 0, 0, 1, 0, 0]
    assert (header["kind"], masks.shape) == ("bidirectional", (0, 7, 7))
    assert header["colours"].tobytes() == drawing.table(drawing.ATTENTION)
    assert Image.open(BytesIO(header["jpeg"].tobytes())).size == (100, 40)


def test_the_browser_gets_each_head_and_their_mean_under_its_name():
    trace = tracer.load("nanogpt", D=12, h=3, d_ff=8, L=1).trace(text="abcde", prove=False)
    heads = trace.attention(0)[0].numpy()
    assert np.abs(np.diff(heads[[0, 1, 2, 0]], axis=0)).max((1, 2)).min() > 1e-3  # no head is like another
    header = sent(trace, [0], views=["2", "0", "mean", "1"])
    assert np.array_equal(header["weights"][0], np.stack([heads[2], heads[0], heads.mean(0), heads[1]]))


def test_the_browser_gets_the_mask_that_ran():
    trace = tracer.load("nanogpt", D=8, h=2, d_ff=8, L=2).trace(text="abcde", prove=False)
    header = sent(trace, [0, 1])
    weights, masks = header["weights"], header["masks"]
    assert (len(masks), header["kind"]) == (1, "causal")  # one: both blocks have the same
    assert np.array_equal(masks[0], np.triu(np.ones((5, 5)), 1))
    assert (weights[:, :, masks[0] == 1] == 0).all() and weights.sum(-1) == pytest.approx(1)
    assert "jpeg" not in header and header["others"] == []


def test_what_does_not_fit_is_asked_for(monkeypatch):
    trace = tracer.load("nanogpt", D=8, h=2, d_ff=8, L=2).trace(text="abcde", prove=False)
    assert attention_maps.portion(trace, [0, 1]) == ([0, 1], ["0", "1"])
    monkeypatch.setattr(attention_maps, "MAX_BYTES", 4 * 2 * 25)
    assert attention_maps.portion(trace, [0, 1]) == ([1], ["0", "1"])
    assert attention_maps.portion(trace, [0, 1], None, {"layer": 0}) == ([0], ["0", "1"])
    monkeypatch.setattr(attention_maps, "MAX_BYTES", 4 * 25)
    assert attention_maps.portion(trace, [0, 1], None, {"layer": 0, "view": "1"}) == ([0], ["1"])
    assert attention_maps.portion(trace, [0, 1], None, {"layer": 7, "view": ["x"]}) == ([1], ["mean"])
    header = sent(trace, [1], views=["mean"], choices=[0, 1])
    assert (header["choices"], header["layers"], header["views"], header["heads"]) == ([0, 1], [1], ["mean"], 2)
    assert np.array_equal(header["weights"][0, 0], trace.attention(1)[0].mean(0).numpy())


def test_blocks_and_tokens_of_two_towers_have_their_names():
    torch.manual_seed(0)
    net = torch.nn.Transformer(8, 2, 2, 2, 16, batch_first=True, norm_first=True).eval()
    trace = tracer.trace(net, torch.randn(1, 5, 8), torch.randn(1, 3, 8))
    assert block_names(trace) == (
        "encoder block 1", "encoder block 2",
        "decoder block 1", "decoder block 1, across", "decoder block 2", "decoder block 2, across",
    )  # fmt: skip
    trace = replace(trace, words=("a", "b", "c", "d", "e"))
    own, across, mine = (sent(trace, [layer], choices=range(6)) for layer in (0, 3, 2))
    words = [f"{token}: {word!r}" for token, word in enumerate("abcde", 1)]
    assert own["names"] == own["keyNames"] == across["keyNames"] == across["keyMarks"] == words
    assert across["names"] == mine["names"] == mine["keyNames"] == ["token 1", "token 2", "token 3"]
    assert across["marks"] == ["1", "2", "3"]
    assert across["blocks"]["3"] == "decoder block 1, across" and len(across["blocks"]) == 6


def test_a_block_of_most_models_is_named_by_its_number():
    trace = tracer.load("nanogpt", D=8, h=2, d_ff=8, L=2).trace(text="abcde", prove=False)
    assert block_names(trace) == ("block 1", "block 2")
    header = sent(trace, [0])
    assert header["names"] == header["keyNames"] and header["names"][0] == "1: 'a'"


def test_tokens_that_are_no_patch_have_a_name_of_their_own():
    segments = (Segment("image", 0, 4), Segment("text", 4, 7))
    picture = Picture("photo", (0, 0, 1, 1), 2, 2, 0)
    trace = Trace("hand", (), picture=picture, segments=segments, words=("<begin>", "red", "red"))
    assert attention_maps.name_other_tokens(trace) == [("5: '<begin>'", 4), ("6: 'red'", 5), ("7: 'red'", 6)]


def test_the_photo_under_the_map_is_the_one_that_was_given():
    down, across = np.mgrid[0:40, 0:60]
    photo = np.stack([4 * across, 6 * down, 0 * down], axis=-1).astype(np.uint8)  # no side is like another
    _, crop = centre_crop(Image.fromarray(photo), 8, 12)
    jpeg = sent(one_hot(2, 3, photo, crop), [0])["jpeg"]
    decoded = np.asarray(Image.open(BytesIO(jpeg.tobytes())), dtype=float)
    assert np.abs(decoded - photo).mean() < 4
