"""Drawn scenes: their caption and pixel classes describe the drawing."""

import subprocess
import sys

import numpy as np
import pytest

from tracer.inputs import synthetic
from tracer.inputs.synthetic import SHAPES


@pytest.fixture(scope="module")
def many():
    return synthetic.draw(np.random.default_rng(3), 300)


def test_the_sample_is_the_one_of_the_notes():
    sample = synthetic.sample_scene()
    assert sample.caption == "a large red circle left of a small blue square"
    assert [number for _, number in sample.mentions] == [0, 0, 0, 0, None, None, 1, 1, 1, 1]
    assert sample.image().size == (64, 64) and sample.image().mode == "RGB"
    assert sample.image().getpixel((20, 26)) == synthetic.COLOURS["red"]


def test_the_seed_decides_the_scene():
    assert synthetic.scene(7) == synthetic.scene(7) != synthetic.scene(8)
    assert len(synthetic.scene(7, 3).things) == 3
    again = synthetic.draw(np.random.default_rng(3), 20)
    assert np.array_equal(again.pixels(), synthetic.draw(np.random.default_rng(3), 20).pixels())


def test_the_same_scene_but_blue():
    scene = synthetic.scene(5, 3)
    blue, one = scene.but(colour="blue"), scene.but(1, colour="blue", shape="star")
    assert [t.colour for t in blue.things] == ["blue"] * 3
    assert [t.box for t in blue.things] == [t.box for t in scene.things]
    assert np.array_equal(blue.classes(), scene.classes())
    assert not np.array_equal(np.asarray(blue.image()), np.asarray(scene.image()))
    assert one.things[1].words[2:] == ("blue", "star") and one.things[0] == scene.things[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.but(colour="pink"), "'pink' can't be drawn; expected one of red, orange"),
        (lambda s: s.but(shape="blob"), "'blob' can't be drawn; expected one of circle, square"),
        (lambda s: s.but(9, colour="red"), "object 9 is none of this scene's"),
        (lambda s: synthetic.scene(0, 4), "counts=\\(4,\\) can't be drawn"),
    ],
)
def test_what_can_not_be_drawn_is_refused_in_words(change, words):
    with pytest.raises(ValueError, match=words):
        change(synthetic.scene(0))


def test_objects_stand_apart_and_in_reading_order(many):
    for scene in map(many.__getitem__, range(len(many))):
        for i, a in enumerate(scene.things):
            assert min(a.box) >= 1 - 1e-6 and max(a.box) <= synthetic.SIDE - 1 + 1e-6
            for b in scene.things[i + 1 :]:
                assert abs(a.x - b.x) <= synthetic.COLUMN or b.x - a.x >= synthetic.COLUMN_DISTANCE
                assert abs(a.x - b.x) > synthetic.COLUMN or b.y > a.y
                assert max(abs(a.x - b.x), abs(a.y - b.y)) >= a.radius + b.radius + synthetic.GAP - 1e-6


def test_captions_use_the_vocabulary_and_tell_scenes_apart(many):
    captions = many.captions()
    words = {word for caption in captions for word in caption.split()}
    assert words == set(synthetic.VOCABULARY[2:])
    assert max(len(caption.split()) for caption in captions) == synthetic.MAX_WORDS == 16
    assert [caption.count(" a ") + 1 for caption in captions] == many.count.tolist()


def test_every_object_is_drawn_in_its_colour_and_class(many):
    pixels, classes = many.pixels(), many.classes()
    for index in range(60):
        scene, seen = many[index], set(np.unique(classes[index]).tolist())
        assert seen == {0} | {synthetic.CLASSES.index(thing.shape) for thing in scene.things}
        for thing in scene.things:
            row, column = int(thing.y), int(thing.x)
            ink = np.array(synthetic.COLOURS[thing.colour]) + thing.tint
            assert np.array_equal(pixels[index, row, column], ink.clip(0, 255))
            assert classes[index, row, column] == synthetic.CLASSES.index(thing.shape)


def test_one_scene_is_drawn_as_in_a_batch(many):
    pixels, classes = many.pixels(), many.classes()
    for index in (0, 1, 2):
        assert np.array_equal(np.asarray(many[index].image()), pixels[index])
        assert np.array_equal(many[index].classes(), classes[index])


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_fill_their_box(name):
    """The area as counted in fine pixels, and half the width that the box says."""
    x = np.linspace(-1.5, 1.5, 601)
    distance = SHAPES[name](x[None, :], x[:, None], 1.0)
    inside = distance <= 0
    area = {"circle": np.pi, "square": 4, "triangle": 2, "cross": 0.36 * 2 * 4 - 0.72**2, "star": 1.3225}[name]
    assert inside.sum() * 0.005**2 == pytest.approx(area, rel=0.02)
    assert abs(x[inside.any(axis=0)]).max() == pytest.approx(0.95 if name == "star" else 1, abs=0.01)
    assert np.allclose(distance, distance[:, ::-1])


def test_only_allowed_pairs_are_drawn():
    held = synthetic.draw(np.random.default_rng(0), 100, allowed=lambda colour, shape: (colour + shape) % 3 > 0)
    for scene in map(held.__getitem__, range(100)):
        for thing in scene.things:
            assert (tuple(synthetic.COLOURS).index(thing.colour) + tuple(SHAPES).index(thing.shape)) % 3 > 0


def test_scenes_are_drawn_without_torch():
    code = "import sys, tracer.inputs.synthetic as s; s.scene(0).image(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_slice_of_scenes_is_scenes(many):
    part = many[10:13]
    assert len(part) == 3 and part[1] == many[11]
    assert np.array_equal(part.pixels(), many.pixels()[10:13])
