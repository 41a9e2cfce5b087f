"""Position of a patch on its photo: its box is exactly its pixels, whatever the crop, the scale and the grid."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tracer.inputs.images import centre_crop, patch_boxes, sample_photo, to_array

sizes = st.integers(1, 300)
grids = st.tuples(st.integers(1, 7), st.integers(1, 7)).filter(lambda grid: grid[0] != grid[1])


@settings(max_examples=60)
@given(sizes, sizes, grids, st.integers(1, 5), st.sampled_from([1.0, 0.875]))
def test_every_pixel_lies_in_the_box_of_its_patch(photo_width, photo_height, grid, side, share):
    (rows, columns), photo = grid, Image.new("RGB", (photo_width, photo_height))
    image, crop = centre_crop(photo, rows * side, columns * side, share=share)
    assert image.size == (columns * side, rows * side)
    boxes = patch_boxes(crop, rows, columns)
    assert len(boxes) == rows * columns
    for y in range(rows * side):
        for x in range(columns * side):
            left, top, right, bottom = boxes[y // side * columns + x // side]
            across, down = crop.to_photo(x + 0.5, y + 0.5)
            assert left < across < right and top < down < bottom
            assert crop.to_input(across, down) == pytest.approx((x + 0.5, y + 0.5))


@settings(max_examples=60)
@given(sizes, sizes, grids)
def test_the_boxes_tile_the_crop_exactly(photo_width, photo_height, grid):
    rows, columns = grid
    _, crop = centre_crop(Image.new("L", (photo_width, photo_height)), rows * 3, columns * 3)
    boxes = patch_boxes(crop, rows, columns)
    assert boxes[0][:2] == (crop.left, crop.top) and boxes[-1][2:] == (crop.right, crop.bottom)
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert left < right and top < bottom
        if (i + 1) % columns:
            assert boxes[i + 1][0] == right
        if i + columns < len(boxes):
            assert boxes[i + columns][1] == bottom
    assert crop.left >= 0 and crop.right <= photo_width and crop.top >= 0 and crop.bottom <= photo_height
    assert crop.left + crop.right == pytest.approx(photo_width) and crop.top + crop.bottom == pytest.approx(
        photo_height
    )
    assert (crop.right - crop.left) * rows == pytest.approx((crop.bottom - crop.top) * columns)


@pytest.mark.parametrize(
    ("rows", "columns", "side", "margin"), [(2, 3, 4, (0, 0)), (3, 2, 5, (8, 0)), (2, 5, 3, (0, 6))]
)
@pytest.mark.parametrize("scale", [1, 4])
def test_painting_one_patch_lights_exactly_its_pixel_box(rows, columns, side, margin, scale):
    """The photo is painted where `patch_boxes` says, and the model's input lights up in that patch alone."""
    size = (columns * side * scale + margin[0], rows * side * scale + margin[1])
    for i, box in enumerate(
        patch_boxes(centre_crop(Image.new("L", size), rows * side, columns * side)[1], rows, columns)
    ):
        photo = Image.new("L", size)
        assert all(edge == round(edge) for edge in box)
        photo.paste(255, tuple(map(round, box)))
        _, crop = centre_crop(photo, rows * side, columns * side)
        image = photo.resize((crop.width, crop.height), Image.Resampling.BOX, box=crop.box)
        expected = np.zeros((rows * side, columns * side), dtype=np.uint8)
        row, column = divmod(i, columns)
        expected[row * side : (row + 1) * side, column * side : (column + 1) * side] = 255
        assert np.array_equal(np.asarray(image), expected)


@pytest.mark.parametrize("size", [(181, 97), (64, 301), (450, 300)])
def test_a_painted_patch_stands_out_at_any_scale(size):
    rows, columns, side = 3, 4, 8
    _, crop = centre_crop(Image.new("L", size), rows * side, columns * side)
    for i, box in enumerate(patch_boxes(crop, rows, columns)):
        photo = Image.new("L", size)
        photo.paste(255, tuple(map(round, box)))
        image, _ = centre_crop(photo, rows * side, columns * side)
        patches = np.asarray(image).reshape(rows, side, columns, side).mean(axis=(1, 3)).ravel() / 255
        assert patches[i] > 0.9 and np.delete(patches, i).max() < 0.1


def test_the_resize_is_pillows_antialiased_bicubic():
    photo = sample_photo().resize((451, 300))
    image, crop = centre_crop(photo, 150, 225)
    assert crop.box == (0.5, 0, 450.5, 300)
    cut = photo.crop((0, 0, 450, 300)).resize((225, 150), Image.Resampling.BICUBIC)
    assert np.abs(np.asarray(image, dtype=int) - np.asarray(cut)).mean() < 6
    whole, crop = centre_crop(photo, 300, 451)
    assert crop.box == (0, 0, 451, 300) and np.array_equal(np.asarray(whole), np.asarray(photo))


def test_normalised_as_the_formula_says():
    image = Image.new("RGB", (3, 2), (51, 102, 255))
    array = to_array(image, (0.1, 0.2, 0.3), (0.5, 0.25, 2))
    assert array.shape == (3, 2, 3) and array.dtype == np.float32 and array.flags.c_contiguous
    assert array[:, 1, 2] == pytest.approx([0.2, 0.8, 0.35])
    assert to_array(image.convert("L"), 0.5, 0.5).shape == (1, 2, 3)


@pytest.mark.parametrize(
    ("call", "quoted"),
    [
        (lambda photo: centre_crop(photo, 0, 5), "0 × 5"),
        (lambda photo: centre_crop(photo, 4, 5, share=1.5), "1.5"),
        (lambda photo: patch_boxes(centre_crop(photo, 4, 5)[1], 2, 0), "2 × 0"),
        (lambda photo: to_array(photo, (0.5, 0.5), 1.0), "2 means"),
    ],
)
def test_sizes_that_make_no_sense_are_refused(call, quoted):
    with pytest.raises(ValueError, match="expected") as caught:
        call(Image.new("RGB", (8, 8)))
    assert quoted in str(caught.value)
