"""Attention over a photo: whatever the photo shows, a patch is the brighter the larger its weight."""

from types import SimpleNamespace

import numpy as np
import pytest

import tracer
from tests.support.sweeping import cases
from tracer.figures.attention import lit_photo
from tracer.inputs.samples import samples
from tracer.verify.checks.attention import map_luminance


@pytest.mark.parametrize("name", cases(samples("photos"), ("horse", "cat")))
def test_the_order_of_lightness_is_the_order_of_weights(name, vit):
    trace = vit.trace(image=samples("photos")[name]())
    assert list(map_luminance.problems(SimpleNamespace(trace=trace))) == []


def test_a_photo_that_keeps_its_own_light_is_found(monkeypatch):
    """The photo darkened by what has no weight, as maps are often drawn."""
    trace = tracer.load("vit").trace(image=samples("photos")["horse"]())
    monkeypatch.setattr(lit_photo, "sketch", lambda photo, *crop: photo.mean(-1))
    monkeypatch.setattr(lit_photo, "AMBER", np.zeros(3))
    assert "is not brighter" in "".join(map_luminance.problems(SimpleNamespace(trace=trace)))


def test_every_patch_of_a_sketch_has_the_same_mean_and_edges_stay():
    rng = np.random.default_rng(0)
    photo = np.kron(rng.integers(0, 255, (4, 6, 1)), np.ones((16, 16, 3))) * 0.9 + rng.integers(0, 20, (64, 96, 1))
    photo[20:24, :] = 255
    greys = lit_photo.sketch(photo.astype(np.uint8), (16.0, 0.0, 80.0, 64.0), 4, 4)
    patches = greys[:, 16:80].reshape(4, 16, 4, 16).mean((1, 3))
    assert np.ptp(patches) < 1e-6 and patches.mean() == pytest.approx(lit_photo.GREY)
    assert greys[20:24, 16:80].mean() > lit_photo.GREY + 20
