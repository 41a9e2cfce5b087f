"""Positions of the masked autoencoder's tokens on the photo: on the very pixels that they were computed from."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import tracer
from tracer.attention import places, unseen

FRAME_SIZES = {"H": 16, "W": 24, "P": 8, "D": 16, "h": 2, "d_ff": 24, "L": 1, "L_dec": 1}


def patch_box(trace, token: int) -> tuple[slice, slice]:
    """Rows and columns of the photo's pixels that the map lays over a token of the encoder."""
    picture, patch = trace.picture, places(trace, "encoder")[token]
    left, top, right, bottom = picture.crop
    wide, high = (right - left) / picture.columns, (bottom - top) / picture.rows
    row, column = divmod(patch, picture.columns)
    y, x = round(top + row * high), round(left + column * wide)
    return slice(y, y + round(high)), slice(x, x + round(wide))


def test_the_boxes_of_visible_patches_are_the_pixels_that_the_encoder_got():
    """Cut out of the photo, each box gives, by the embedding and the position of its place, the token that ran."""
    model = tracer.load("mae", **FRAME_SIZES)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 40), dtype=np.uint8)  # a crop that needs no resizing
    trace = model.trace(image=Image.fromarray(pixels), N_v=4, seed=2)
    photo, p = trace.values["photo"][..., 0], dict(model.net.named_parameters())
    assert trace.picture.crop == (8, 0, 32, 16) and set(places(trace, "encoder")) == set(range(4))
    for token, patch in places(trace, "encoder").items():
        rows, columns = patch_box(trace, token)
        normalised = (photo[rows, columns].float() / 255 - 0.5) / 0.2
        assert torch.allclose(normalised.flatten(), trace.value("patches")[0, patch], atol=1e-6)
        embedded = F.linear(normalised.flatten(), p["embedding.weight"], p["embedding.bias"]) + p["position"][patch]
        assert torch.allclose(embedded, trace.value("visible")[0, token], atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_painting_over_a_box_changes_its_token_alone(seed):
    """Found without any list: which pixels of the photo reach which token of the encoder."""
    model = tracer.load("mae", **FRAME_SIZES)
    pixels = np.random.default_rng(seed).integers(0, 200, (16, 40), dtype=np.uint8)
    before = model.trace(image=Image.fromarray(pixels), N_v=3, seed=seed)
    reached = np.zeros(pixels.shape, bool)
    for token in range(3):
        painted, box = pixels.copy(), patch_box(before, token)
        painted[box] += 50
        reached[box] = True
        after = model.trace(image=Image.fromarray(painted), N_v=3, seed=seed)
        moved = (after.value("visible") != before.value("visible")).any(-1)[0]
        assert moved.nonzero().flatten().tolist() == [token]
    hidden = np.where(reached, pixels, pixels + 50).astype(np.uint8)
    after = model.trace(image=Image.fromarray(hidden), N_v=3, seed=seed)
    assert torch.equal(after.value("visible"), before.value("visible"))
    assert not torch.equal(after.value("position"), before.value("position"))


def test_what_no_box_lies_on_is_a_mask_token_in_the_decoder():
    model = tracer.load("mae", D=48, d_ff=96)
    trace = model.trace()
    p, part, hidden = dict(model.net.named_parameters()), *unseen(trace)
    entering = trace.value("decoder_position.sum")[0]
    masks = {
        patch for patch in range(64) if torch.equal(entering[patch], p["mask_token"] + p["decoder_position"][patch])
    }
    assert part == "encoder" and set(hidden) == masks and len(hidden) == 32
    assert sorted([*hidden, *places(trace, "encoder").values()]) == list(range(64))
    assert places(trace, "decoder") == {patch: patch for patch in range(64)}
