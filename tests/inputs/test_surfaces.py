"""Surfaces and their damage: seeded, and disjoint where they must be."""

from dataclasses import replace

import numpy as np
import pytest

from tracer.inputs import synthetic


@pytest.mark.parametrize("name", ["drawn", *synthetic.KINDS, *synthetic.TEXTURES])
def test_a_seed_is_a_surface(name):
    first, again, other = (synthetic.surface(name, seed) for seed in (4, 4, 5))
    assert first.shape == (64, 64) and first.dtype == np.uint8 and first.std() > 3
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert not np.array_equal(first, synthetic.surface(name, 4, part="train"))


@pytest.mark.parametrize("name", synthetic.TEXTURES)
def test_training_and_test_regions_of_a_texture_are_apart(name):
    seen, unseen = synthetic.texture(name, "train"), synthetic.texture(name, "test")
    assert seen.shape[1] + unseen.shape[1] < 512 and min(seen.shape[1], unseen.shape[1]) > 96
    with pytest.raises(ValueError, match="read-only"):
        seen[0, 0] = 0


@pytest.mark.parametrize("kind", synthetic.DEFECTS)
def test_a_defect_changes_what_its_mask_says(kind):
    clean = synthetic.surface("stripes", 1)
    marred, mask = synthetic.damage(clean, 2, kind)
    changed = np.abs(marred.astype(int) - clean)
    assert mask.any() and mask.mean() < 0.3
    assert changed[mask].min() >= synthetic.MIN_CONTRAST > changed[~mask].max()
    assert np.array_equal(marred, synthetic.damage(clean, 2, kind)[0])


def test_a_patch_counts_as_defective_from_a_tenth_of_its_pixels():
    mask = np.zeros((16, 24), dtype=bool)
    mask[0, :7] = True  # 7 of 64 pixels of patch 0
    mask[8, 8:14] = True  # 6 of 64 pixels of patch 4
    assert synthetic.patch_mask(mask, 8).tolist() == [True, False, False, False, False, False]


def test_the_same_surface_at_another_angle():
    pattern = synthetic.pattern(3, "stripes")
    turned = replace(pattern, angle=pattern.angle + 1)
    assert pattern.kind == "stripes" and not np.array_equal(pattern.render(), turned.render())
    assert synthetic.sample().size == (64, 64)


def test_unknown_names_are_refused_in_one_sentence():
    for call, name in (
        (lambda: synthetic.surface("rust", 0), "rust"),
        (lambda: synthetic.damage(synthetic.surface("dots", 0), 0, "rust"), "rust"),
        (lambda: synthetic.texture("rust", "test"), "rust"),
    ):
        with pytest.raises(ValueError, match=f"there is no .* {name!r}; expected one of"):
            call()
