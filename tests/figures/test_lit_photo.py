"""Attention over a photo: whatever the photo shows, a patch is the brighter the larger its weight."""

from types import SimpleNamespace

import numpy as np
import pytest

import tracer
from tests.support.sweeping import cases
from tracer.figures import attention_maps
from tracer.inputs.model_inputs import samples
from tracer.verify.checks import attention


@pytest.mark.parametrize("name", cases(samples("photos"), ("horse", "cat")))
def test_the_order_of_lightness_is_the_order_of_weights(name, vit):
    trace = vit.trace(image=samples("photos")[name]())
    assert list(attention.check_map_luminance(SimpleNamespace(trace=trace))) == []


def test_a_photo_that_keeps_its_own_light_is_found(monkeypatch):
    """The photo darkened by what has no weight, as maps are often drawn."""
    trace = tracer.load("vit").trace(image=samples("photos")["horse"]())
    monkeypatch.setattr(attention_maps, "sketch", lambda photo, *crop: photo.mean(-1))
    monkeypatch.setattr(attention_maps, "AMBER", np.zeros(3))
    assert "is not brighter" in "".join(attention.check_map_luminance(SimpleNamespace(trace=trace)))


def test_every_patch_of_a_sketch_has_the_same_mean_and_edges_stay():
    rng = np.random.default_rng(0)
    photo = np.kron(rng.integers(0, 255, (4, 6, 1)), np.ones((16, 16, 3))) * 0.9 + rng.integers(0, 20, (64, 96, 1))
    photo[20:24, :] = 255
    greys = attention_maps.sketch(photo.astype(np.uint8), (16.0, 0.0, 80.0, 64.0), 4, 4)
    patches = greys[:, 16:80].reshape(4, 16, 4, 16).mean((1, 3))
    assert np.ptp(patches) < 1e-6 and patches.mean() == pytest.approx(attention_maps.GREY)
    assert greys[20:24, 16:80].mean() > attention_maps.GREY + 20
