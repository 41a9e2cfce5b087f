"""The one door for photos: what comes in, and what is refused in which words."""

import struct
import subprocess
import sys
import threading
import warnings
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tracer.inputs import images
from tracer.inputs.images import open_photo, sample_photo, sample_photos

ROOT = Path(__file__).resolve().parent.parent
MODES = {
    "PNG": ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"],
    "JPEG": ["1", "L", "RGB", "CMYK", "YCbCr"],
    "WebP": ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"],
    "GIF": ["1", "L", "LA", "P", "RGB", "RGBA"],
    "BMP": ["1", "L", "P", "RGB", "RGBA"],
}
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


def encoded(picture: Image.Image, name: str, **options) -> bytes:
    buffer = BytesIO()
    picture.save(buffer, format=name, **({"lossless": True} if name == "WebP" else {}), **options)
    return buffer.getvalue()


def refusal(data) -> str:
    with pytest.raises(ValueError) as caught:
        open_photo(data)
    sentence = str(caught.value)
    assert "expected" in sentence and "\n" not in sentence and not sentence.endswith(".")
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    return sentence


@pytest.mark.parametrize(("name", "mode"), EVERY_MODE)
def test_every_format_and_mode_opens_as_rgb(name, mode):
    photo = open_photo(encoded(two_tone(mode), name))
    assert photo.mode == "RGB" and photo.size == (16, 8)
    left, right = photo.getpixel((1, 4)), photo.getpixel((14, 4))
    dark, bright = ((0, 0, 0), (255, 255, 255)) if mode == "1" else (DARK, BRIGHT)
    assert np.abs(np.subtract(left, dark)).max() <= 2
    assert np.abs(np.subtract(right, bright)).max() <= 2


@pytest.mark.parametrize(("name", "mode"), [(name, mode) for name, mode in EVERY_MODE if mode in ("P", "RGB", "RGBA")])
def test_colours_stay(name, mode):
    photo = open_photo(encoded(two_tone(mode, dark=(180, 30, 20), bright=(20, 60, 200)), name))
    tolerance = 12 if name == "JPEG" else 2
    assert np.abs(np.subtract(photo.getpixel((1, 4)), (180, 30, 20))).max() <= tolerance
    assert np.abs(np.subtract(photo.getpixel((14, 4)), (20, 60, 200))).max() <= tolerance


@pytest.mark.parametrize("mode", ["PA", "RGBa", "RGBX", "HSV", "LAB", "F", "I", "I;16", "I;16B"])
def test_modes_that_no_format_stores_become_rgb(mode):
    picture = Image.new(mode, (3, 2))
    assert images._to_rgb(picture).mode == "RGB"


def test_sixteen_bit_grey_is_scaled_not_clipped():
    levels = np.array([[0, 128, 257, 32768, 65535]], dtype=np.uint16)
    photo = open_photo(encoded(Image.fromarray(levels), "PNG"))
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
    photo = open_photo(encoded(stored, name, exif=exif))
    assert photo.size == (24, 16)
    assert np.abs(np.asarray(photo)[..., 0].astype(int) - np.asarray(upright)).max() <= 6
    assert photo.info == {} and not photo.getexif()


def test_what_each_orientation_means():
    """EXIF 2.32: orientation 6 stores the upright picture's left column, from the bottom, as its first row."""
    stored = Image.fromarray(np.array([[10, 20, 30], [40, 50, 60]], dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    assert np.asarray(open_photo(encoded(stored, "PNG", exif=exif)))[..., 0].tolist() == [[40, 10], [50, 20], [60, 30]]
    exif[0x0112] = 2
    assert np.asarray(open_photo(encoded(stored, "PNG", exif=exif)))[..., 0].tolist() == [[30, 20, 10], [60, 50, 40]]


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_unreadable_exif_does_not_refuse_the_photo():
    data = encoded(two_tone("RGB"), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert open_photo(data).size == (16, 8)


@pytest.mark.parametrize("name", ["PNG", "WebP"])
def test_alpha_is_laid_over_white(name):
    picture = Image.new("RGBA", (3, 1), (0, 0, 0, 0))
    picture.putpixel((1, 0), (200, 0, 0, 128))
    picture.putpixel((2, 0), (0, 0, 255, 255))
    photo = open_photo(encoded(picture, name, **({"exact": True} if name == "WebP" else {})))
    assert photo.getpixel((0, 0)) == (255, 255, 255)
    assert np.abs(np.subtract(photo.getpixel((1, 0)), (227, 127, 127))).max() <= 1
    assert photo.getpixel((2, 0)) == (0, 0, 255)


@pytest.mark.parametrize(("mode", "clear"), [("L", 40), ("RGB", DARK), ("I;16", 40 * 257), ("P", None), ("1", 0)])
def test_a_transparent_colour_is_white(mode, clear):
    picture = two_tone(mode)
    clear = picture.getpixel((0, 0)) if clear is None else clear
    photo = open_photo(encoded(picture, "PNG", transparency=clear))
    assert photo.getpixel((1, 4)) == (255, 255, 255)
    assert photo.getpixel((14, 4)) == ((255, 255, 255) if mode == "1" else BRIGHT)


def test_a_palette_with_an_alpha_for_each_colour():
    picture = two_tone("P")
    first = picture.getpixel((0, 0))
    photo = open_photo(encoded(picture, "PNG", transparency=bytes(0 if i == first else 255 for i in range(4))))
    assert photo.getpixel((1, 4)) == (255, 255, 255) and photo.getpixel((14, 4)) == BRIGHT


def test_grey_with_alpha_and_a_transparent_gif():
    picture = Image.new("LA", (2, 1), (90, 0))
    picture.putpixel((1, 0), (90, 255))
    for data in (encoded(picture, "PNG"), encoded(picture.convert("RGBA"), "GIF")):
        photo = open_photo(data)
        assert photo.getpixel((0, 0)) == (255, 255, 255) and photo.getpixel((1, 0)) == (90, 90, 90)


@pytest.mark.parametrize("name", ["GIF", "WebP", "PNG"])
def test_the_first_frame_of_an_animation(name):
    frames = [Image.new("RGB", (9, 5), colour) for colour in ("red", "lime", "blue")]
    photo = open_photo(encoded(frames[0], name, save_all=True, append_images=frames[1:], duration=50))
    assert photo.size == (9, 5) and photo.getpixel((4, 2)) == (255, 0, 0)


def test_a_photo_with_a_preview_behind_it():
    """Phones write JPEG files of several pictures (MPO)."""
    frames = [Image.new("RGB", (32, 16), "red"), Image.new("RGB", (8, 4), "blue")]
    photo = open_photo(encoded(frames[0], "MPO", save_all=True, append_images=frames[1:]))
    assert photo.size == (32, 16) and photo.getpixel((4, 2))[0] > 250


@pytest.mark.parametrize(
    ("data", "quoted"),
    [
        (b"", "0 bytes"),
        (b"hello, world, this is no picture", "b'hello, world'"),
        (b"\0" * 100, "no picture"),
        (b'<?xml version="1.0"?>\n<svg xmlns="x" width="4"/>', "an SVG drawing"),
        (b"%PDF-1.7 ...", "a PDF document"),
        (encoded(Image.new("RGB", (4, 4)), "TIFF"), "a TIFF picture"),
        (b"\0\0\0\x18ftypheic" + b"\0" * 40, "a HEIC picture"),
        (b"\x89PNG\r\n\x1a\n", "PNG"),
        (b"\xff\xd8\xff\xe0", "JPEG"),
        (b"GIF89a", "GIF"),
        (b"BM", "BMP"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "WebP"),
        (b"\xff\xd8\xff" + b"\xff" * 200_000, "JPEG"),
        ("cat.png", "'cat.png'"),
        (None, "None"),
    ],
)
def test_refusals_quote_what_was_given(data, quoted):
    assert quoted in refusal(data)


def test_ten_megabytes_are_the_most():
    data = encoded(two_tone("RGB"), "PNG")
    assert open_photo(data + b"\0" * (images.MAX_BYTES - len(data))).size == (16, 8)
    assert "10,485,761 bytes" in refusal(data + b"\0" * (images.MAX_BYTES - len(data) + 1))


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_truncated_file_is_refused(name, share):
    noise = np.random.default_rng(0).integers(0, 255, (61, 83, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), name)
    assert name in refusal(data[: int(len(data) * share)])


@pytest.mark.filterwarnings("ignore")  # Pillow's, on damaged EXIF
@settings(max_examples=150)
@given(st.data())
def test_damaged_bytes_open_or_are_refused_in_words(data):
    whole = bytearray(
        encoded(two_tone("P" if (name := data.draw(st.sampled_from(list(MODES)))) == "GIF" else "RGB"), name)
    )
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert open_photo(bytes(whole)).mode == "RGB"
    except ValueError as error:
        assert "expected" in str(error)


def bombs() -> dict[str, bytes]:
    """Small files whose headers declare 20,000 × 10,000 pixels or more."""
    wide, tall = 20_000, 10_000
    png = bytearray(encoded(two_tone("L"), "PNG"))
    png[16:24] = struct.pack(">II", wide, tall)
    jpeg = bytearray(encoded(two_tone("L"), "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", tall, wide)
    screen = bytearray(encoded(two_tone("P"), "GIF"))
    screen[6:10] = struct.pack("<HH", wide, tall)
    gif_frame = bytearray(encoded(two_tone("P"), "GIF"))
    descriptor = gif_frame.index(b"\x2c", 13 + (3 << (gif_frame[10] & 7) + 1))
    gif_frame[descriptor + 5 : descriptor + 9] = struct.pack("<HH", wide, tall)
    bmp = bytearray(encoded(two_tone("L"), "BMP"))
    bmp[18:26] = struct.pack("<ii", wide, -tall)
    lossless = bytearray(encoded(two_tone("RGB"), "WebP"))
    lossless[21:25] = struct.pack("<I", (16_383) | (16_383 << 14))
    lossy = bytearray(b"RIFF\0\0\0\0WEBPVP8 \x40\0\0\0\x30\0\0\x9d\x01\x2a" + struct.pack("<HH", 16_383, 16_383))
    extended = (
        b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (wide - 1).to_bytes(3, "little") + (tall - 1).to_bytes(3, "little")
    )
    return {
        "PNG": png,
        "JPEG": jpeg,
        "GIF": screen,
        "GIF frame": gif_frame,
        "BMP": bmp,
        "WebP lossless": lossless,
        "WebP lossy": lossy + b"\0" * 40,
        "WebP extended": extended + b"\0" * 40,
    }


@pytest.mark.parametrize("name", bombs())
def test_a_decompression_bomb_never_reaches_the_decoder(name, monkeypatch):
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("the decoder was called"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sentence = refusal(bytes(bombs()[name]))
    assert "50,000,000" in sentence
    assert "20000 × 10000" in sentence or "16383 × 16383" in sentence or "16384 × 16384" in sentence


def test_a_decompression_bomb_costs_no_memory():
    """A file of 450 kB that would unpack to 450 MB, opened by a process of its own that reports its peak."""
    program = """
import io, resource, struct, zlib
from tracer.inputs.images import open_photo
def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
pack = zlib.compressobj(1)
rows = b"".join(pack.compress(bytes(1 + 60_000 // 8) * 500) for _ in range(120)) + pack.flush()
data = b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 1, 0, 0, 0, 0))
data += chunk(b"IDAT", rows) + chunk(b"IEND", b"")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    open_photo(data)
except ValueError as error:
    print("60000 × 60000" in str(error), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    refused, kilobytes = done.stdout.split()
    assert refused == "True" and int(kilobytes) < 8_000, done


@pytest.mark.parametrize(("width", "height"), [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("name", ["PNG", "GIF", "BMP"])
def test_a_picture_without_pixels_is_refused(name, width, height):
    data = bytearray(encoded(two_tone("P"), name))
    if name == "PNG":
        data[16:24] = struct.pack(">II", width, height)
    elif name == "BMP":
        data[18:26] = struct.pack("<ii", width, height)
    else:
        data[6:10] = struct.pack("<HH", width, height)
        descriptor = data.index(b"\x2c", 13 + (3 << (data[10] & 7) + 1))
        data[descriptor + 5 : descriptor + 9] = struct.pack("<HH", width, height)
    assert f"{width} × {height}" in refusal(bytes(data))


def test_pillow_is_left_as_it_was_by_many_threads():
    limit, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    good, bad, results = encoded(two_tone("RGB"), "PNG"), bytes(bombs()["PNG"]), []

    def work():
        for _ in range(20):
            results.append(open_photo(good).size)
            try:
                open_photo(bad)
            except ValueError:
                results.append("refused")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, results)) == ["(16, 8)"] * 160 + ["refused"] * 160
    assert limit == Image.MAX_IMAGE_PIXELS and filters == list(warnings.filters)


@pytest.mark.parametrize("name", sample_photos())
def test_samples_open(name):
    photo = sample_photo(name)
    assert photo.mode == "RGB" and min(photo.size) >= 300


def test_there_is_a_cat():
    assert "cat" in sample_photos()


def test_an_unknown_sample_is_refused():
    with pytest.raises(ValueError, match=r"'dog'.*expected one of cat"):
        sample_photo("dog")
