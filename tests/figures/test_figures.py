"""Figures: data in, picture out. Every expectation here is computed by hand."""

import base64
import re
from importlib.resources import files
from io import BytesIO
from itertools import combinations

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.messages import unpack
from tracer.figures import attention_maps, drawing, envelope, predictions, tensors
from tracer.inputs.images import Crop, centre_crop
from tracer.record import Operand
from tracer.symbols.notation import AXES, MEANINGS, size_html


@pytest.mark.parametrize(
    ("symbolic", "html"),
    [
        ("N + 1", "<i>N</i>+1"),
        ("P**2", "<i>P</i>²"),
        ("d_ff", "<i>d</i><sub>ff</sub>"),
        ("?", "?"),
    ],
)
def test_sizes_are_italic(symbolic, html):
    assert size_html(symbolic) == html


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", drawing.STAGES.values(), ids=drawing.STAGES)
@pytest.mark.parametrize("page", ["#ffffff", "#0e1116"], ids=["light", "dark"])
def test_stage_colours_stand_out_on_both_pages(colour, page):
    """WCAG 2.2, 1.4.11: graphics have a contrast of at least 3 : 1."""
    darker, lighter = sorted([luminance(colour), luminance(page)])
    assert (lighter + 0.05) / (darker + 0.05) >= 3


def test_colour_scale_runs_from_dark_to_light():
    table = np.frombuffer(drawing.table("inferno"), np.uint8).reshape(256, 3)
    brightness = table @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(brightness) > -1).all()
    assert brightness[0] < 5 < 200 < brightness[-1]


def test_attention_has_one_colour_everywhere_and_more_of_it_is_lighter():
    scale = np.frombuffer(drawing.table(drawing.ATTENTION), np.uint8).reshape(256, 3)
    assert (*scale[-1],) == drawing.AMBER == (*attention_maps.AMBER,)
    light = np.cbrt([luminance(f"#{bytes(colour).hex()}") for colour in scale[15::15]])  # as in CIELAB
    assert (np.diff(light) > 0).all() and np.diff(light).max() < 2 * np.diff(light).min()
    colours = (files("tracer.figures.film") / "player/stage/colours.js").read_text(encoding="utf-8")
    threads = re.findall(r"thread: \[(\d+), (\d+), (\d+)\].+?paper: \"(#\w+)\"", colours, re.DOTALL)
    assert len(threads) == 2
    for red, green, blue, page in threads:  # the same hue in both themes, and enough contrast on the page
        assert int(green) / int(red) == pytest.approx(176 / 255, abs=0.01) and blue == "0"
        darker, lighter = sorted([luminance(f"#{int(red):02x}{int(green):02x}00"), luminance(page)])
        assert (lighter + 0.05) / (darker + 0.05) >= 3


def test_a_large_matrix_is_reduced_to_means_of_boxes():
    matrix = np.arange(20, dtype=np.float32).reshape(5, 4)
    cells, box = tensors.reduce(matrix, rows=2, columns=2)
    assert box == (3, 2)
    # rows 0-2 and 3-4, columns 0-1 and 2-3
    assert cells.tolist() == [[4.5, 6.5], [14.5, 16.5]]


def test_a_small_matrix_is_shown_whole():
    matrix = np.eye(3, dtype=np.float32)
    cells, box = tensors.reduce(matrix)
    assert box == (1, 1)
    assert cells is matrix
    assert tensors.caption(matrix) == ""


def test_a_reduced_matrix_says_so():
    assert "mean of 2 × 1 values" in tensors.caption(np.zeros((300, 4), np.float32))


def cells(picture: dict) -> np.ndarray:
    """Return the numbers that a browser reads."""
    return unpack(envelope.pack(picture))["cells"]


def test_a_tensor_has_named_axes_and_all_its_matrices():
    value = torch.arange(30.0).reshape(1, 2, 5, 3)
    picture = tensors.build_heatmap(value, ("B", "h", "N + 1", "d_k"), "attention")
    assert picture["axes"] == ["token, $N + 1 = 5$", "feature, $d_k = 3$"]
    assert picture["lead"] == [["Input of the batch", 1], ["Head", 2]] and picture["which"] == [0, 1]
    assert np.array_equal(cells(picture), value[0]) and picture["slices"][1][3].startswith("5 rows × 3 columns")
    scores = tensors.build_heatmap(torch.ones(5, 5), ("S", "S"), "attention")
    assert scores["roles"] == ["query", "key"] and scores["lead"] == []
    assert tensors.build_heatmap(torch.tensor(2.0), (), "head")["full"] == [1, 1]


@pytest.mark.parametrize("size", [1.0, 1e-30, 1e30])
def test_large_matrices_keep_three_digits_and_whole_numbers_all(size):
    value = torch.randn(80, 80, dtype=torch.float64) * size
    picture = tensors.build_heatmap(value, ("S", "D"), "mlp")
    assert isinstance(picture["cells"], envelope.HalfArray)
    assert np.abs(cells(picture)[0] - value.numpy()).max() <= 2**-11 * np.abs(value.numpy()).max()
    tokens = torch.randint(50_000, (80, 80))
    assert np.array_equal(cells(tensors.build_heatmap(tokens, ("B", "T"), "embedding"))[0], tokens)


def test_of_many_large_matrices_the_one_that_is_asked_for_is_sent():
    value = torch.randn(2, 12, 200, 200)
    picture = tensors.build_heatmap(value, ("B", "h", "S", "S"), "attention", index=(1, 99))
    assert picture["which"] == [23] and np.allclose(cells(picture)[0], value[1, 11], atol=4e-3)
    assert tensors.weight(value.shape) == picture["cells"].nbytes
    assert tensors.build_heatmap(torch.empty(0, 3), ("?", "?"), "mlp") is None
    assert tensors.build_heatmap(torch.ones(1, 20_000_000, dtype=torch.bool), ("?", "?"), "mlp") is None


def test_values_of_both_signs_are_centred_on_zero():
    picture = tensors.build_heatmap(torch.tensor([[-3.0, 1.0]]), ("1", "2"), "mlp")
    assert picture["slices"][0][:3] == [-3, 3, "diverging"]
    picture = tensors.build_heatmap(torch.tensor([[2.0, 5.0]]), ("1", "2"), "mlp")
    assert picture["slices"][0][:3] == [2, 5, "sequential"]


def test_masked_scores_are_left_empty_and_said():
    matrix = torch.tensor([[1.0, -torch.inf], [2.0, 3.0]])
    picture = tensors.build_heatmap(matrix, ("S", "S"), "attention")
    assert np.isneginf(cells(picture)[0, 0, 1]) and picture["slices"][0][:3] == [1, 3, "sequential"]
    assert "1 value is −∞ and left empty" in picture["slices"][0][4]
    assert "2 values are −∞ or NaN" in tensors.caption(np.array([[1.0, -np.inf], [2.0, np.nan]]))


def test_a_mask_has_two_colours_each_with_its_value():
    picture = tensors.build_heatmap(torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]), ("T", "T"), "attention")
    assert cells(picture)[0].tolist() == [[1, 0], [1, 1]] and picture["slices"][0][:3] == [0, 0, "mask"]
    assert picture["slices"][0][4] == "1 of 4 values are −∞."


def test_a_tiny_photo_is_enlarged_as_the_model_sees_it():
    photo = Image.fromarray(np.arange(27, dtype=np.uint8).reshape(3, 3, 3) * 9)
    image, crop = centre_crop(photo, 32, 32)
    assert np.array_equal(tensors.rescale(photo, crop), image)
    assert tensors.rescale(photo).size == (3, 3)


def test_half_precision_is_shown():
    torch = pytest.importorskip("torch")
    assert tensors.as_array(torch.tensor([1.5], dtype=torch.bfloat16)).tolist() == [1.5]


def test_bars_are_sorted_and_labelled():
    drawn = drawing.class_bars(["a", "b", "<c>"], [0.1, 0.7, 0.2], top=2)
    assert re.findall(r"<b>(.*?)</b>", drawn) == ["b", "&lt;c&gt;"]
    assert re.findall(r"<em>(.*?)</em>", drawn) == ["70.0\u00a0%", "20.0\u00a0%"]
    assert [float(width) for width in re.findall(r"width:([\d.]+)%", drawn)] == [70, 20]
    assert re.findall(r">(\d+)\s%</small>", drawn) == ["0", "25", "50", "75", "100"]
    assert drawing.describe(["a", "b"], [0.3, 0.7]) == "Most probable: b 70.0\u00a0%, a 30.0\u00a0%"


@pytest.mark.parametrize(("largest", "end"), [(0.6, 1), (0, 1), (0.0021, 0.004), (0.00002, 0.00002), (0.049, 0.06)])
def test_bars_are_seen_also_where_no_class_is_probable(largest, end):
    assert drawing.scale_end(largest) == pytest.approx(end)
    drawn = drawing.class_bars(["a", "b"], [largest, largest / 2])
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", drawn)]
    assert widths == pytest.approx([100 * largest / end, 50 * largest / end], abs=0.01)
    assert f">{100 * end:.3g}\u00a0%</small></div>" in drawn


def test_the_pictures_of_one_row_have_one_size_with_a_colour_bar_or_without():
    plain, coloured = predictions.panel(np.eye(4)), predictions.panel(np.eye(4), "error", "patch")
    assert plain.layout.height == coloured.layout.height and plain.layout.margin == coloured.layout.margin
    assert coloured.data[0].colorbar.orientation == "h" and coloured.data[0].colorbar.title.font.size <= 15


def decode_image(svg: str) -> Image.Image:
    data = re.search(r'href="data:image/\w+;base64,([^"]+)"', svg)[1]
    return Image.open(BytesIO(base64.b64decode(data)))


def test_the_brightest_patch_is_framed_and_the_darkest_dimmed():
    photo, crop = Image.new("RGB", (60, 40), "red"), Crop(0, 0, 60, 40, 60, 40, 6, 4)
    svg = tensors.spotlight(photo, crop, np.array([[0.0, 0.1, 0.4], [0.2, 0.0, 0.0]]), 'looks at "x"')
    shades = re.findall(r'height="20" fill-opacity="([0-9.]+)"', svg)
    assert [float(shade) for shade in shades] == [0.8, 0.6, 0, 0.4, 0.8, 0.8]
    assert 'x="40" y="0" width="20" height="20" fill="none"' in svg
    assert "patch 3: 40.0\u00a0% of the attention" in svg and "looks at &quot;x&quot;" in svg


def test_a_spotlight_is_dark_outside_the_crop():
    photo = Image.new("RGB", (100, 40))
    _, crop = centre_crop(photo, 8, 8)
    svg = tensors.spotlight(photo, crop, np.ones((2, 2)), "")
    assert '<path d="M0 0H100V40H0ZM30 0H70V40H30Z" fill-opacity="0.8" fill-rule="evenodd"/>' in svg


def test_the_grid_lies_on_the_crop():
    photo = Image.new("RGB", (100, 40))
    _, crop = centre_crop(photo, 8, 12)
    svg = tensors.grid(photo, crop, rows=2, columns=3)
    assert 'viewBox="0 0 100 40"' in svg
    # a crop of 3 : 2 about the middle: 60 × 40 from x = 20, in patches of 20 × 20
    assert re.findall(r'd="(M20 0V40[^"]*)"', svg)[0] == "M20 0V40M40 0V40M60 0V40M80 0V40M20 0H80M20 20H80M20 40H80"
    assert "M0 0H100V40H0ZM20 0H80V40H20Z" in svg


def test_patches_are_the_pixels_that_the_model_sees():
    pixels = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    svg = tensors.patches(Image.fromarray(pixels), rows=2, columns=3)
    sheet = np.asarray(decode_image(svg))
    # patches of 2 × 2 at 8 times their size: 16 wide, 2 apart, with 6 above for the number
    assert sheet.shape == (2 * 22, 3 * 18 - 2, 4)
    for row in range(2):
        for column in range(3):
            top, left = row * 22 + 6, column * 18
            shown = sheet[top : top + 16 : 8, left : left + 16 : 8]
            assert (shown[..., :3] == pixels[2 * row : 2 * row + 2, 2 * column : 2 * column + 2]).all()
            assert (shown[..., 3] == 255).all()
    assert (sheet[..., 3].mean(1)[:6] == 0).all()
    assert re.findall(r">(\d+)</text>", svg) == ["1", "2", "3", "4", "5", "6"]
    size = float(re.search(r'font-size="([\d.]+)"', svg)[1])
    lines = sorted({round(float(y) % 22, 6) for y in re.findall(r'<text x="\d+" y="([\d.]+)"', svg)})
    assert len(lines) == 1 and 0.8 * size <= lines[0] <= 6  # the whole number stands above its patch, none is cut
    cell = re.search(r'data-patch="5" x="(\d+)" y="(\d+)" width="(\d+)" height="(\d+)"', svg)
    assert [int(value) for value in cell.groups()] == [36, 28, 16, 16]


def operands(rows: int, inner: int, columns: int) -> tuple[Operand, Operand, Operand]:
    return (
        Operand(r"\mathbf{Q}", ("S", "d_k"), (rows, inner)),
        Operand(r"\mathbf{K}^\top", ("d_k", "S"), (inner, columns)),
        Operand(r"\mathbf{S}", ("S", "S"), (rows, columns)),
    )


@pytest.mark.parametrize(("rows", "inner", "columns"), [(2, 3, 4), (65, 32, 65), (1, 768, 10)])
def test_products_are_drawn_to_scale(rows, inner, columns):
    boxes = tensors.rectangles(operands(rows, inner, columns))
    sides = [(inner, rows), (columns, inner), (columns, rows)]
    unit = boxes[0][2] / inner
    for (_, _, width, height), (across, down) in zip(boxes, sides, strict=True):
        assert width == pytest.approx(across * unit)
        assert height == pytest.approx(down * unit)
    left, right, result = boxes
    assert left[1] == result[1]  # rows of the left factor lie beside the rows of the result
    assert right[0] == result[0]  # columns of the right one above its columns
    assert max(result[0] + result[2], result[1] + result[3]) == pytest.approx(tensors.SIZE + tensors.GAP)


@pytest.mark.parametrize(("rows", "inner", "columns"), [(5, 3, 5), (1, 128, 10), (64, 4, 2), (50, 50, 1)])
def test_no_two_words_of_a_product_are_in_one_place(rows, inner, columns):
    svg = tensors.drawing(operands(rows, inner, columns), "attention")
    places = [(float(x), float(y)) for x, y in re.findall(r'<text x="([-.\d]+)" y="([-.\d]+)"', svg)]
    assert len(places) == 9
    for (x, y), (across, down) in combinations(places, 2):
        assert abs(x - across) >= 14 or abs(y - down) >= 13


def test_products_name_their_sides():
    svg = tensors.drawing(operands(5, 3, 5), "attention")
    assert 'aria-label="Q [5 × 3] times K^⊤ [3 × 5] gives S [5 × 5], drawn to scale"' in svg
    assert svg.count(" = 3</text>") == 2
    assert svg.count(" = 5</text>") == 4


def test_the_text_alternative_of_a_heatmap_has_its_numbers():
    matrix = np.array([[-2.0, 1.0, 7.0], [0.0, 0.0, np.inf]], np.float32)
    assert tensors.describe(matrix) == "2 rows × 3 columns: smallest -2, mean 1.2, largest 7."


NOUNS = ("patch", "token", "class", "query", "mel bin")


def test_an_axis_is_called_what_its_size_counts():
    """ "number of patches" is said of a size whose axis has patches."""
    counted = {name: meaning.partition(":")[0].partition(",")[0] for name, meaning in MEANINGS.items() if name in AXES}
    for name, meaning in counted.items():
        nouns = [noun for noun in NOUNS if noun in meaning and meaning.startswith("number of")]
        assert nouns in ([], [AXES[name]]), (name, meaning, AXES[name])
    assert AXES["N"] == "patch" and AXES["T"] == "token" and AXES["D"] == "feature" and AXES["K"] == "class"
