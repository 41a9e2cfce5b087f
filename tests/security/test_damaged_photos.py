"""Photos that are refused in words: damaged, too large, or no pictures at all."""

import struct
import subprocess
import sys
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.inputs.test_photos import MODES, encode, two_tone
from tests.support.sweeping import cases
from tracer.inputs import images
from tracer.inputs.images import open_photo

ROOT = Path(__file__).resolve().parents[2]


def refusal(data) -> str:
    with pytest.raises(ValueError) as caught:
        open_photo(data)
    sentence = str(caught.value)
    assert "expected" in sentence and "\n" not in sentence and not sentence.endswith(".")
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    return sentence


@pytest.mark.parametrize(
    ("data", "quoted"),
    [
        (b"", "0 bytes"),
        (b"hello, world, this is not a picture", "(it starts with the text “hello, world”)"),
        (b"line\nby\tline", "“line by line”"),
        (b"\0\xff" * 100, "(it starts with the bytes 00 ff 00 ff 00 ff 00 ff 00 ff 00 ff)"),
        (b'<?xml version="1.0"?>\n<svg xmlns="x" width="4"/>', "an SVG drawing"),
        (b"%PDF-1.7 ...", "a PDF document"),
        (encode(Image.new("RGB", (4, 4)), "TIFF"), "a TIFF picture"),
        (b"\0\0\0\x18ftypheic" + b"\0" * 40, "HEIC file is cut off"),
        (b"\0\0\0\x18ftypavif" + b"\0" * 40, "AVIF file is cut off"),
        (b"\0\0\0\x18ftypmif1" + b"\0" * 40, "a HEIF picture"),
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
    data = encode(two_tone("RGB"), "PNG")
    assert open_photo(data + b"\0" * (images.MAX_BYTES - len(data))).size == (16, 8)
    assert "10,485,761 bytes" in refusal(data + b"\0" * (images.MAX_BYTES - len(data) + 1))


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_a_truncated_file_is_refused(name, share):
    noise = np.random.default_rng(0).integers(0, 255, (61, 83, 3), dtype=np.uint8)
    data = encode(Image.fromarray(noise), name)
    assert name.replace("HEIF", "HEIC") in refusal(data[: int(len(data) * share)])


@pytest.mark.filterwarnings("ignore")  # Pillow's, on damaged EXIF
@settings(max_examples=150)
@given(st.data())
def test_damaged_bytes_open_or_are_refused_in_words(data):
    whole = bytearray(
        encode(two_tone("P" if (name := data.draw(st.sampled_from(list(MODES)))) == "GIF" else "RGB"), name)
    )
    for _ in range(data.draw(st.integers(1, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert open_photo(bytes(whole)).mode == "RGB"
    except ValueError as error:
        assert "expected" in str(error)


def bombs() -> dict[str, bytes]:
    """Return small files whose headers declare 20,000 × 10,000 pixels or more."""
    wide, tall = 20_000, 10_000
    png = bytearray(encode(two_tone("L"), "PNG"))
    png[16:24] = struct.pack(">II", wide, tall)
    jpeg = bytearray(encode(two_tone("L"), "JPEG"))
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", tall, wide)
    screen = bytearray(encode(two_tone("P"), "GIF"))
    screen[6:10] = struct.pack("<HH", wide, tall)
    gif_frame = bytearray(encode(two_tone("P"), "GIF"))
    descriptor = gif_frame.index(b"\x2c", 13 + (3 << (gif_frame[10] & 7) + 1))
    gif_frame[descriptor + 5 : descriptor + 9] = struct.pack("<HH", wide, tall)
    bmp = bytearray(encode(two_tone("L"), "BMP"))
    bmp[18:26] = struct.pack("<ii", wide, -tall)
    lossless = bytearray(encode(two_tone("RGB"), "WebP"))
    lossless[21:25] = struct.pack("<I", (16_383) | (16_383 << 14))
    lossy = bytearray(b"RIFF\0\0\0\0WEBPVP8 \x40\0\0\0\x30\0\0\x9d\x01\x2a" + struct.pack("<HH", 16_383, 16_383))
    extended = (
        b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (wide - 1).to_bytes(3, "little") + (tall - 1).to_bytes(3, "little")
    )
    phones = {name: bytearray(encode(two_tone("RGB"), name)) for name in ("AVIF", "HEIF")}
    for file in phones.values():
        extent = file.index(b"ispe") + 8
        file[extent : extent + 8] = struct.pack(">II", wide, tall)
    return {
        **phones,
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
    most = {"WebP": "16,000,000", "AVIF": "20,000,000", "HEIF": "25,000,000"}
    assert most.get(name.split()[0], "50,000,000") in sentence
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
    data = bytearray(encode(two_tone("P"), name))
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
    good, bad, results = encode(two_tone("RGB"), "PNG"), bytes(bombs()["PNG"]), []

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


def rows_of_zeros(width: int, height: int, colour: int, channels: int) -> bytes:
    """Return a PNG of black, or clear, pixels of 8 bits."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    pack, row = zlib.compressobj(6), bytes(1 + width * channels)
    some = max(1, 10**6 // len(row))
    packed = b"".join(pack.compress(row * min(some, height - at)) for at in range(0, height, some)) + pack.flush()
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


ALWAYS = "PNG, clear", "PNG, one pixel wide", "AVIF", "JPEG, progressive, all colours"
FAST = {"chroma": "420", "enc_params": {"preset": "ultrafast", "tune": "psnr"}}
HUGE = {  # the largest of each kind that is opened, and what says why the others are not
    "PNG, clear": (lambda: rows_of_zeros(10_000, 5000, 6, 4), "(960, 480)"),
    "PNG, colours": (lambda: rows_of_zeros(1600, 31_000, 2, 3), "(50, 960)"),
    "PNG, one pixel wide": (lambda: rows_of_zeros(1, 50_000_000, 0, 1), "expected at most 32,768 on a side"),
    "WebP": (lambda: encode(Image.new("RGB", (4000, 4000)), "WebP", method=0), "(960, 960)"),
    "WebP, too large": (lambda: encode(Image.new("RGB", (16_383, 3050)), "WebP", method=0), "at most 16,000,000"),
    "HEIC": (lambda: encode(Image.new("RGB", (5000, 5000)), "HEIF", quality=1, **FAST), "(960, 960)"),
    "AVIF": (lambda: encode(Image.new("RGB", (5000, 4000)), "AVIF", quality=10, speed=10), "(960, 768)"),
    "GIF, clear": (lambda: encode(Image.new("P", (10_000, 5000)), "GIF", transparency=0), "(960, 480)"),
    "JPEG": (lambda: encode(Image.new("RGB", (10_000, 5000)), "JPEG"), "(960, 480)"),
    "JPEG, progressive": (
        lambda: encode(Image.new("RGB", (10_000, 5000)), "JPEG", progressive=True, subsampling=2),
        "(960, 480)",
    ),
    "JPEG, progressive, all colours": (
        lambda: encode(Image.new("RGB", (10_000, 5000)), "JPEG", progressive=True, subsampling=0),
        "takes 300 MB to decode",
    ),
}


@pytest.mark.parametrize("name", cases(HUGE, ("PNG, one pixel wide", "HEIC", "JPEG, progressive, all colours")))
def test_no_photo_takes_300_mb_to_open(name, tmp_path):
    """Opened by a process of its own, which says how much memory it had at most, in all."""
    make, expected = HUGE[name]
    (tmp_path / "photo").write_bytes(make())
    program = r"""
import re, sys
from pathlib import Path
from tracer.inputs.images import open_photo
try:
    said = open_photo(Path(sys.argv[1]).read_bytes()).size
except ValueError as error:
    said = error
print(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1], said)
"""
    command = [sys.executable, "-c", program, tmp_path / "photo"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    kilobytes, said = done.stdout.split(" ", 1)
    assert int(kilobytes) < 300_000 and expected in said, done


def test_a_shrunk_photo_is_the_mean_of_its_pixels():
    columns = np.arange(3840) % 2 * 200 + 20
    photo = open_photo(encode(Image.fromarray(np.tile(columns, (9, 1)).astype(np.uint8)), "PNG"))
    assert photo.size == (960, 3) and set(np.unique(photo)) == {120}


@pytest.mark.parametrize(("size", "expected"), [((1500, 1000), (960, 640)), ((800, 960), (800, 960))])
def test_a_photo_is_shrunk_no_further_than_a_screen_needs(size, expected):
    assert open_photo(encode(Image.new("RGB", size), "PNG")).size == expected


def short(width: int, height: int, rows: int, colour: int = 2, depth: int = 8, interlaced: int = 0) -> bytes:
    """Return a PNG whose image data end, as a whole stream, after some of its rows."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    line = 1 + (width * depth * images.CHANNELS[colour] + 7) // 8
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    data = zlib.compress(bytes(line * rows))
    parts = (b"IHDR", header), (b"IDAT", data[:9]), (b"IDAT", data[9:]), (b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


@pytest.mark.parametrize("rows", [0, 1, 99, 3_999])
def test_a_png_whose_rows_end_early_is_refused(rows):
    assert "is cut off or damaged; expected a whole picture" in refusal(short(100, 4_000, rows))
    assert open_photo(short(100, 4_000, 4_000)).height > 900


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_kind_of_png_is_whole(mode):
    for size in ((1, 1), (3, 5), (17, 9), (640, 480)):
        picture = Image.new(mode, size)
        assert images.is_whole(encode(picture, "PNG"))


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (17, 9), (8, 8)])
def test_an_interlaced_png_has_the_rows_of_all_its_passes(size):
    """Counted cell by cell from the pattern of the specification (section 8.1)."""
    width, height = size
    passes = "1646264677777777565656567777777736463646777777775656565677777777"
    cells = [[passes[8 * (y % 8) + x % 8] for x in range(width)] for y in range(height)]
    rows = [[line.count(number) for line in cells] for number in "1234567"]
    lines = sum(1 + 3 * count for number in rows for count in number if count)
    assert images._expected_bytes(short(width, height, 1, interlaced=1)) == lines
