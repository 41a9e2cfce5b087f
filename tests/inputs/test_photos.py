"""Opening of photos: every format and mode, upright, and over white; and the samples."""

import re
from importlib import resources
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tracer.inputs import images
from tracer.inputs.images import SAMPLES, open_photo, sample_photo, sample_photos, shows_none
from tracer.models.training.data import CLASSES

MODES = {
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "JPEG": ["1", "L", "RGB", "CMYK", "YCbCr"],
    "WebP": ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"],
    "GIF": ["1", "L", "LA", "P", "RGB", "RGBA"],
    "BMP": ["1", "L", "P", "RGB", "RGBA"],
    "AVIF": ["L", "RGB", "RGBA"],
    "HEIF": ["L", "RGB", "RGBA"],
}
EXACT = {"WebP": {"lossless": True}, "AVIF": {"quality": 100, "subsampling": "4:4:4"}}
EXACT["HEIF"] = {"quality": -1, "chroma": "444", "matrix_coefficients": 0}
"""What has a format keep every number."""
EVERY_MODE = [(name, mode) for name, modes in MODES.items() for mode in modes]
DARK, BRIGHT = (40, 40, 40), (200, 200, 200)


def two_tone(mode: str, *, dark=DARK, bright=BRIGHT, size=(16, 8)) -> Image.Image:
    """Return a picture whose right half is bright, in the given mode."""
    picture = Image.new("RGB", size, dark)
    picture.paste(bright, (size[0] // 2, 0, *size))
    if mode == "I;16":
        return Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    if mode == "P":
        return picture.quantize(4)
    return picture.convert(mode)


def encode(picture: Image.Image, name: str, **options) -> bytes:
    buffer = BytesIO()
    if name == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    picture.save(buffer, format=name, **{**EXACT.get(name, {}), **options})
    return buffer.getvalue()


@pytest.mark.parametrize(("name", "mode"), EVERY_MODE)
def test_every_format_and_mode_opens_as_rgb(name, mode):
    photo = open_photo(encode(two_tone(mode), name))
    assert photo.mode == "RGB" and photo.size == (16, 8)
    left, right = photo.getpixel((1, 4)), photo.getpixel((14, 4))
    dark, bright = ((0, 0, 0), (255, 255, 255)) if mode == "1" else (DARK, BRIGHT)
    assert np.abs(np.subtract(left, dark)).max() <= 2
    assert np.abs(np.subtract(right, bright)).max() <= 2


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, mode in EVERY_MODE if mode in ("P", "RGB", "RGBA")])
def test_colours_stay(name, mode):
    photo = open_photo(encode(two_tone(mode, dark=(180, 30, 20), bright=(20, 60, 200)), name))
    tolerance = 12 if name == "JPEG" else 2
    assert np.abs(np.subtract(photo.getpixel((1, 4)), (180, 30, 20))).max() <= tolerance
    assert np.abs(np.subtract(photo.getpixel((14, 4)), (20, 60, 200))).max() <= tolerance


@pytest.mark.parametrize("mode", ["PA", "RGBa", "RGBX", "HSV", "LAB", "F", "I", "I;16", "I;16B"])
def test_modes_that_no_format_stores_become_rgb(mode):
    picture = Image.new(mode, (3, 2))
    assert images._to_rgb(picture).mode == "RGB"


def test_sixteen_bit_grey_is_scaled_not_clipped():
    levels = np.array([[0, 128, 257, 32768, 65535]], dtype=np.uint16)
    photo = open_photo(encode(Image.fromarray(levels), "PNG"))
    assert [photo.getpixel((x, 0))[0] for x in range(5)] == [0, 0, 1, 128, 255]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "WebP"])
def test_exif_turns_the_photo_upright(name, orientation):
    upright = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3) * 40).resize(
        (24, 16), Image.Resampling.NEAREST
    )
    # How a camera held that way stores the upright picture: the inverse of what the tag says to do.
    turn = images._UPRIGHT.get(orientation)
    back = {
        Image.Transpose.ROTATE_90: Image.Transpose.ROTATE_270,
        Image.Transpose.ROTATE_270: Image.Transpose.ROTATE_90,
    }
    stored = upright if turn is None else upright.transpose(back.get(turn, turn))
    exif = Image.Exif()
    exif[0x0112] = orientation
    photo = open_photo(encode(stored, name, exif=exif))
    assert photo.size == (24, 16)
    assert np.abs(np.asarray(photo)[..., 0].astype(int) - np.asarray(upright)).max() <= 6
    assert photo.info == {} and not photo.getexif()


def test_what_each_orientation_means():
    """EXIF 2.32: orientation 6 stores the upright picture's left column, from the bottom, as its first row."""
    stored = Image.fromarray(np.array([[10, 20, 30], [40, 50, 60]], dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert np.asarray(open_photo(encode(stored, "PNG", exif=exif)))[..., 0].tolist() == [[40, 10], [50, 20], [60, 30]]
    exif[0x0112] = 2
    assert np.asarray(open_photo(encode(stored, "PNG", exif=exif)))[..., 0].tolist() == [[30, 20, 10], [60, 50, 40]]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_unreadable_exif_does_not_refuse_the_photo():
    data = encode(two_tone("RGB"), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert open_photo(data).size == (16, 8)


@pytest.mark.parametrize("name", ["PNG", "WebP"])
def test_alpha_is_laid_over_white(name):
    picture = Image.new("RGBA", (3, 1), (0, 0, 0, 0))
    picture.putpixel((1, 0), (200, 0, 0, 128))
    picture.putpixel((2, 0), (0, 0, 255, 255))
    photo = open_photo(encode(picture, name, **({"exact": True} if name == "WebP" else {})))
    assert photo.getpixel((0, 0)) == (255, 255, 255)
    assert np.abs(np.subtract(photo.getpixel((1, 0)), (227, 127, 127))).max() <= 1
    assert photo.getpixel((2, 0)) == (0, 0, 255)


@pytest.mark.parametrize(("mode", "clear"), [("L", 40), ("RGB", DARK), ("I;16", 40 * 257), ("P", None), ("1", 0)])
def test_a_transparent_colour_is_white(mode, clear):
    picture = two_tone(mode)
    clear = picture.getpixel((0, 0)) if clear is None else clear
    photo = open_photo(encode(picture, "PNG", transparency=clear))
    ground = 0 if mode == "1" else 255  # white on white could not be seen
    assert photo.getpixel((1, 4)) == (ground,) * 3
    assert photo.getpixel((14, 4)) == ((255, 255, 255) if mode == "1" else BRIGHT)


def test_a_white_logo_is_laid_over_black_and_an_empty_picture_over_white():
    logo = Image.new("RGBA", (40, 30), (255, 255, 255, 0))
    assert np.asarray(open_photo(encode(logo, "PNG"))).min() == 255
    logo.paste((250, 255, 252, 255), (10, 10, 30, 20))
    photo = open_photo(encode(logo, "PNG"))
    assert photo.getpixel((0, 0)) == (0, 0, 0) and photo.getpixel((20, 15)) == (250, 255, 252)
    logo.paste((200, 40, 40, 255), (10, 10, 12, 12))  # now it can be seen on white
    assert open_photo(encode(logo, "PNG")).getpixel((0, 0)) == (255, 255, 255)


def test_grey_of_12_bits_is_scaled_where_the_file_tells():
    grey = np.linspace(0, 4095, 64).reshape(8, 8).astype(np.uint16)
    told = PngInfo()
    told.add(b"sBIT", bytes([12]))
    silent, scaled, full = (
        np.asarray(open_photo(encode(Image.fromarray(levels), "PNG", **how)))[..., 0]
        for levels, how in ((grey, {}), (grey, {"pnginfo": told}), (grey * 16, {"pnginfo": told}))
    )
    assert silent.max() == 16 and images.is_one_colour(Image.fromarray(silent))
    assert np.abs(scaled - grey / 4095 * 255).max() <= 0.5 and not images.is_one_colour(Image.fromarray(scaled))
    assert np.abs(full - scaled.astype(int)).max() <= 1  # as the specification has it: 12 bits, scaled to 16


def test_a_palette_with_an_alpha_for_each_colour():
    picture = two_tone("P")
    first = picture.getpixel((0, 0))
    photo = open_photo(encode(picture, "PNG", transparency=bytes(0 if i == first else 255 for i in range(4))))
    assert photo.getpixel((1, 4)) == (255, 255, 255) and photo.getpixel((14, 4)) == BRIGHT


def test_grey_with_alpha_and_a_transparent_gif():
    picture = Image.new("LA", (2, 1), (90, 0))
    picture.putpixel((1, 0), (90, 255))
    for data in (encode(picture, "PNG"), encode(picture.convert("RGBA"), "GIF")):
        photo = open_photo(data)
        assert photo.getpixel((0, 0)) == (255, 255, 255) and photo.getpixel((1, 0)) == (90, 90, 90)


@pytest.mark.parametrize("name", ["GIF", "WebP", "PNG"])
def test_the_first_frame_of_an_animation(name):
    frames = [Image.new("RGB", (9, 5), colour) for colour in ("red", "lime", "blue")]
    photo = open_photo(encode(frames[0], name, save_all=True, append_images=frames[1:], duration=50))
    assert photo.size == (9, 5) and photo.getpixel((4, 2)) == (255, 0, 0)


def test_a_photo_with_a_preview_behind_it():
    """Phones write JPEG files of several pictures (MPO)."""
    frames = [Image.new("RGB", (32, 16), "red"), Image.new("RGB", (8, 4), "blue")]
    photo = open_photo(encode(frames[0], "MPO", save_all=True, append_images=frames[1:]))
    assert photo.size == (32, 16) and photo.getpixel((4, 2))[0] > 250


@pytest.mark.parametrize("name", sample_photos())
def test_samples_open(name):
    photo = sample_photo(name)
    assert photo.mode == "RGB" and min(photo.size) >= 300


def test_each_sample_is_credited_and_small():
    folder = resources.files("tracer") / "inputs" / "photos"
    credits = (folder / "CREDITS.md").read_text(encoding="utf-8")
    photos = {file.name: len(file.read_bytes()) for file in folder.iterdir() if file.name != "CREDITS.md"}
    assert set(photos) == {f"{name}.jpg" for name in SAMPLES} == set(re.findall(r"^\| `(.+?)`", credits, re.MULTILINE))
    assert sum(photos.values()) < 400_000


def test_all_samples_but_the_last_are_things_of_the_classes_of_cifar10():
    assert set(SAMPLES[:-1]) < set(CLASSES)
    assert [name for name in SAMPLES if shows_none(name, CLASSES)] == ["astronaut"]
    assert not any(shows_none(name, ("tabby", "sorrel")) for name in (*SAMPLES, "mine.jpg"))


def test_an_unknown_sample_is_refused():
    with pytest.raises(ValueError, match=r"'rocket'.*expected one of horse, dog"):
        sample_photo("rocket")


@pytest.mark.parametrize("name", ["HEIF", "AVIF"])
def test_photos_of_phones_stand_upright(name):
    """Cameras store the picture as the sensor had it, and how it is turned beside it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    photo = open_photo(encode(two_tone("RGB"), name, exif=exif.tobytes()))
    assert photo.size == (8, 16) and photo.info == {}
    assert np.abs(np.subtract(photo.getpixel((4, 1)), DARK)).max() <= 4
    assert np.abs(np.subtract(photo.getpixel((4, 14)), BRIGHT)).max() <= 4
