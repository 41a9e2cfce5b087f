"""Photos: the one function that opens them, and the position of the model's input on them.

`open_photo` decodes bytes from anywhere into an RGB picture or refuses them in one sentence. `centre_crop` cuts it to
the size that a model takes and remembers the cut as a `Crop`, so that `patch_boxes` can say which pixels of the photo a
patch is. Nothing here imports torch: a photo is on the page before torch is."""

import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from importlib.resources.abc import Traversable
from io import BytesIO

import numpy as np
from PIL import Image

from tracer.utils.errors import quote
from tracer.utils.files import checked_bytes
from tracer.utils.lazy_import import lazy_import

pillow_heif = lazy_import("pillow_heif")


# A check that a PNG file holds all of its rows: decoders accept one whose stream ends early.
#
# Source: PNG specification (third edition), sections 5.3 (chunks), 7.2 (scanlines) and 8.1 (Adam7).

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Samples of a pixel, by colour type."""
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row of each pass, and the steps between columns and rows."""
PIECE = 2**20
"""Bytes that are decompressed at once."""


def is_whole(data: bytes) -> bool:
    """Return whether the image data of a PNG decompress to as many bytes as its header promises, a piece at a time.

    Raise zlib.error and struct.error for damaged data.
    """
    left = _expected_bytes(data)
    stream = zlib.decompressobj()
    for kind, body in _chunks(data):
        while kind == b"IDAT" and body and left > 0 and not stream.eof:
            left -= len(stream.decompress(body, PIECE))
            body = stream.unconsumed_tail
    while left > 0 and (more := stream.decompress(stream.unconsumed_tail, PIECE)):
        left -= len(more)
    return left <= 0


def _expected_bytes(data: bytes) -> int:
    """Return the bytes of all scanlines, each with its filter byte."""
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", data[16:29])
    bits, total = depth * CHANNELS[colour], 0
    for column, row, across, down in ADAM7 if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(width - column) // across), -(-(height - row) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + (columns * bits + 7) // 8)
    return total


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at + 8 <= len(data):
        size, kind = struct.unpack(">I4s", data[at : at + 8])
        yield kind, data[at + 8 : at + 8 + size]
        at += 12 + size


# Format and size of a picture, read from its first bytes: no pixel is decoded and no buffer allocated.
#
# The layouts are those of the PNG specification (section 11.2.2), ITU-T T.81 (B.2.2), the WebP container specification,
# GIF89a (sections 18 and 20), Microsoft's BITMAPINFOHEADER, and ISO/IEC 14496-12 and 23008-12 (HEIF).

_JPEG_MARKER = re.compile(rb"\xff[^\xff\x00]")
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 to SOF15, without DHT, JPG and DAC
_JPEG_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_JPEG_SCAN = frozenset({0xDA})
BRANDS = 200
"""Bytes in which the brands of a file stand; usual ones have a handful."""
_JPEG_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers that no length follows


def picture_format(data: bytes) -> str | None:
    """Return "PNG", "JPEG", "HEIC", "AVIF", "WebP", "GIF" or "BMP" by the file's signature, None for any other."""
    if data[4:8] == b"ftyp":
        return _brand(data)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WebP"
    signatures = {b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"GIF8": "GIF", b"BM": "BMP"}
    return next((name for start, name in signatures.items() if data.startswith(start)), None)


def picture_size(data: bytes, name: str) -> tuple[int, int] | None:
    """Return (width, height) in pixels as the header of a `name` file declares them, or None if it is cut off."""
    try:
        return _SIZE[name](data)
    except (struct.error, IndexError):
        return None


def _png_size(data: bytes) -> tuple[int, int]:
    return struct.unpack_from(">II", data, 16)


def _bmp_size(data: bytes) -> tuple[int, int]:
    if struct.unpack_from("<I", data, 14)[0] == 12:  # BITMAPCOREHEADER
        return struct.unpack_from("<HH", data, 18)
    width, height = struct.unpack_from("<ii", data, 18)
    return width, abs(height)  # a negative height means that the top row comes first


def _gif_size(data: bytes) -> tuple[int, int]:
    """Return the screen of a GIF, enlarged to hold its first frame as decoders do."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)  # past the colour table
    while data[at] == 0x21:  # extensions: a label, then sub-blocks up to an empty one
        at += 2
        while data[at]:
            at += data[at] + 1
        at += 1
    if data[at] == 0x2C:
        left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, at + 1)
        width, height = max(width, left + frame_width), max(height, top + frame_height)
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int]:
    _, at = next(_jpeg_segments(data, _JPEG_FRAMES))
    height, width = struct.unpack_from(">HH", data, at + 3)
    return width, height


def _jpeg_segments(data: bytes, wanted: frozenset[int]) -> Iterator[tuple[int, int]]:
    """Yield the markers among `wanted`, in order, with the position of the data after each. Raise IndexError at the
    end."""
    at = 2
    while match := _JPEG_MARKER.search(data, at):
        at, marker = match.end(), data[match.end() - 1]
        if marker in wanted:
            yield marker, at
        if marker not in _JPEG_ALONE:
            at += struct.unpack_from(">H", data, at)[0]
    raise IndexError("no such marker before the end")


def jpeg_buffer(data: bytes) -> int:
    """Return the bytes that a decoder needs for all coefficients of a JPEG file, 2 for each; 0 where it needs a few
    lines only.

    It needs all where they come in several scans: in a progressive file, and where the first scan has not all
    components. T.81, B.2.2 and B.2.3.
    """
    try:
        marker, at = next(_jpeg_segments(data, _JPEG_FRAMES))
        height, width, count = struct.unpack_from(">HHB", data, at + 3)
        _, scan = next(_jpeg_segments(data, _JPEG_SCAN))
        if marker not in _JPEG_PROGRESSIVE and data[scan + 2] == count:
            return 0
        sides = [(data[at + 9 + 3 * i] >> 4, data[at + 9 + 3 * i] & 15) for i in range(count)]
        across, down = (max(1, *side) for side in zip(*sides, strict=True))
        return int(2 * width * height * sum(wide * tall for wide, tall in sides) / (across * down))
    except (struct.error, IndexError):
        return 0  # it is cut off: a decoder says so before it asks for memory


def _brand(data: bytes) -> str | None:
    """Return the format of a file of ISO/IEC 14496-12 by its compatible brands (section 4.3)."""
    brands = {data[at : at + 4] for at in range(8, min(struct.unpack_from(">I", data)[0], BRANDS), 4)}
    for name, own in (("AVIF", {b"avif", b"avis"}), ("HEIC", {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis"})):
        if brands & own:
            return name
    return None


def _heif_size(data: bytes) -> tuple[int, int]:
    """Return the largest extent of a picture in the file (`ispe`, ISO/IEC 23008-12, 6.5.3): tiles have smaller ones.

    Rotation is ignored.
    """
    start, stop = _box(data, 0, len(data), b"meta")
    for kind in (b"iprp", b"ipco"):
        start, stop = _box(data, start + 4 * (kind == b"iprp"), stop, kind)  # meta has a version and flags first
    extents = [struct.unpack_from(">II", data, at + 4) for kind, at, _ in _boxes(data, start, stop) if kind == b"ispe"]
    if not extents:
        raise IndexError("no picture has an extent")
    return max(extents, key=lambda extent: extent[0] * extent[1])


def _box(data: bytes, start: int, stop: int, wanted: bytes) -> tuple[int, int]:
    """Return the start and end of a box's content. Raise IndexError where there is no such box."""
    for kind, at, end in _boxes(data, start, stop):
        if kind == wanted:
            return at, end
    raise IndexError(f"no box {wanted!r}")


def _boxes(data: bytes, start: int, stop: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the boxes between two positions: kind, and start and end of the content."""
    while start + 8 <= stop:
        size, kind = struct.unpack_from(">I4s", data, start)
        if size < 8 or start + size > stop:  # 0 and 1 are for boxes that end with the file or are larger than 4 GB
            return
        yield kind, start + 8, start + size
        start += size


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", data, 26)
    return width & 0x3FFF, height & 0x3FFF


_SIZE = {"PNG": _png_size, "JPEG": _jpeg_size, "WebP": _webp_size, "GIF": _gif_size, "BMP": _bmp_size}
_SIZE |= {"HEIC": _heif_size, "AVIF": _heif_size}


MAX_BYTES = 10 * 2**20
MAX_PIXELS = 50_000_000
MAX_SIDE = 32_768
"""Pixels: decoders hold a pointer for each row, also where it is one pixel long."""
MAX_WEBP = 16_000_000
"""Pixels of a WebP file, whose decoder holds four copies of 4 bytes each."""
MAX_HEIC, MAX_AVIF = 25_000_000, 20_000_000
"""Pixels of files of phones, whose decoders hold 7 and 10 bytes for each."""
MAX_BUFFER = 200 * 10**6
"""Bytes that the decoder of JPEG may need for a picture whose parts are not stored one after the other."""
OPENED_SIDE = 960
"""Pixels of the longer side of a photo that was opened; a larger one is shrunk. Screens and models take less."""
FORMAT_MAX_PIXELS = {"WebP": MAX_WEBP, "HEIC": MAX_HEIC, "AVIF": MAX_AVIF}
"""Pixels of files whose decoders need more memory than others."""
_STRIP = 1 << 20  # pixels that are converted at once

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF", "HEIF")
KINDS = "PNG, JPEG, HEIC, AVIF, WebP, GIF or BMP"
_EXPECTATION = f"expected a photo as {KINDS}"
_FOREIGN_FORMATS = {  # what people try that has a name: (offset, bytes) of its signature
    "a PDF document": (0, b"%PDF"),
    "a TIFF picture": (0, b"II*\0"),
    "a big-endian TIFF picture": (0, b"MM\0*"),
    "a HEIF picture": (4, b"ftypmif1"),
    "a ZIP archive": (0, b"PK\x03\x04"),
}
_EXIF_ORIENTATION = 0x0112
_UPRIGHT = {  # EXIF 2.32, tag 0x0112: how the stored picture is turned to stand upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
MEAN, STD = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
"""How pixels are normalised where no card says otherwise."""
SAMPLES = ("horse", "dog", "bird", "automobile", "cat", "deer", "astronaut")
"""The sample photos, named after the class of CIFAR-10 that they show; the last shows none of them."""


def open_photo(data: bytes) -> Image.Image:
    """Return the photo in the bytes of a file: mode RGB, upright, without metadata, its longer side `OPENED_SIDE` at
    most.

    PNG, JPEG, HEIC, AVIF, WebP, GIF and BMP in any colour mode; of an animation the first frame. EXIF rotation is
    applied, and 16 bit grey is scaled to 8: by the bits that a PNG says it uses (sBIT), where all its numbers fit into
    them. Transparency is laid over white, or over black where nothing could be seen on white, as of a white logo.

    Raises ValueError with one sentence for anything else: another kind of file, a damaged one, more than 10 MB
    (`MAX_BYTES`), more than 50 megapixels (`MAX_PIXELS`), or one that takes more memory to decode than such a PNG. The
    size is read from the header, before any pixel is decoded, so a picture made to fill the memory costs none; any
    other one takes less than 300 MB while it is opened.
    """
    name, size = _checked_header(data)
    if {"HEIC": "HEIF"}.get(name, name.upper()) not in _formats():
        raise ValueError(
            f"This file is a {name} picture, which is opened by a package that is not here; {_EXPECTATION}"
        )
    try:
        photo = _decode(data, size) if name != "PNG" or is_whole(data) else None
    except Exception:  # decoders raise all sorts of things on damaged bytes
        photo = None
    if photo is None:
        raise ValueError(f"This {name} file of {len(data):,} bytes is cut off or damaged; expected a whole picture")
    photo.info = {}  # whoever keeps the photo does not keep where it was taken
    return photo


def _checked_header(data: bytes) -> tuple[str, tuple[int, int]]:
    """Return the format's name and (width, height) in pixels, after every check that needs no decoder."""
    data = checked_bytes(data, "photo", MAX_BYTES, _EXPECTATION)
    name = picture_format(data)
    if name is None:
        raise ValueError(f"This file is {_describe(data)}; {_EXPECTATION}")
    size = picture_size(data, name)
    if size is None:
        raise ValueError(f"This {name} file is cut off after {len(data):,} bytes; expected a whole picture")
    width, height = size
    if width <= 0 or height <= 0:
        raise ValueError(f"This {name} file is {width} × {height} pixels; expected at least 1 × 1")
    count, most = f"{width} × {height} = {width * height:,} pixels", FORMAT_MAX_PIXELS.get(name, MAX_PIXELS)
    if width * height > most:
        raise ValueError(f"This {name} file has {count}; expected at most {most:,} ({most // 10**6} megapixels)")
    if max(size) > MAX_SIDE:
        raise ValueError(f"This {name} file has {count}; expected at most {MAX_SIDE:,} on a side")
    if name == "JPEG" and (buffer := jpeg_buffer(data)) > MAX_BUFFER:
        raise ValueError(
            f"This JPEG file has {count} and takes {buffer / 1e6:,.0f} MB to decode, since it is progressive; expected "
            f"at most {MAX_BUFFER / 1e6:.0f} MB"
        )
    return name, size


def _describe(data: bytes) -> str:
    """Describe bytes of an unsupported format."""
    if b"<svg" in data[:2000].lower():
        return "an SVG drawing"
    for what, (offset, signature) in _FOREIGN_FORMATS.items():
        if data[offset:].startswith(signature):
            return what
    start = data[:12]
    if all(32 <= byte < 127 or byte in b"\t\n\r" for byte in start):
        return f"not a picture (it starts with the text “{' '.join(start.decode('ascii').split())}”)"
    return f"not a picture (it starts with the bytes {start.hex(' ')})"


@cache
def _formats() -> tuple[str, ...]:
    """Return the formats of Pillow's that are opened; that of HEIC needs a package of its own."""
    Image.init()
    with suppress(ImportError):
        pillow_heif.register_heif_opener(thumbnails=False)
    return tuple(name for name in _FORMATS if name in Image.OPEN)  # Pillow builds without some


def _decode(data: bytes, size: tuple[int, int]) -> Image.Image:
    """Return the first frame as RGB, upright. Raises whatever the decoder does, and if it reads another size."""
    with Image.open(BytesIO(data), formats=_formats()) as image:
        cut = image.format in ("AVIF", "HEIF") and image.width * image.height <= size[0] * size[1]  # and turned
        if image.size != size and not cut:
            raise ValueError(f"the decoder reads {image.size}, the header {size}")
        turn = _UPRIGHT.get(_orientation(image))
        photo = _shrink(image, _significant_bits(data) if image.format == "PNG" else 16)
    return photo if turn is None else photo.transpose(turn)


def _significant_bits(data: bytes) -> int:
    """Return how many bits of the grey of a PNG are significant, by its chunk sBIT; 16 without one."""
    body = next((body for kind, body in _chunks(data) if kind == b"sBIT"), b"")
    return min(16, body[0]) if body and body[0] else 16


def _shrink(image: Image.Image, bits: int = 16) -> Image.Image:
    """Return a picture as RGB, shrunk so that its longer side is `OPENED_SIDE` at most; the decoded pixels are held
    once.

    Each pixel is the mean of those that it replaces. A JPEG is decoded smaller, in half, a quarter or an eighth of the
    size, as far as that goes; all others are converted and shrunk strip by strip, by a whole number, and then to size.
    """
    top = 65535
    if image.mode.startswith("I") and image.getextrema()[1] < 2**bits:
        top = 2**bits - 1
    ground = "white"
    if image.has_transparency_data and not _differs(image, "white") and _differs(image, "black"):
        ground = "black"
    by = max(1, max(image.size) // OPENED_SIDE)
    if by > 1 and image.format == "JPEG":
        image.draft(None, (-(-image.width // by), -(-image.height // by)))
        by = max(1, max(image.size) // OPENED_SIDE)
    if by == 1:
        photo = image if image.mode == "RGB" and max(image.size) > OPENED_SIDE else _to_rgb(image, top, ground)
    else:
        width, height = image.size
        photo = Image.new("RGB", (-(-width // by), -(-height // by)))
        for start, strip in _strips(image, by):
            photo.paste(_to_rgb(strip, top, ground).reduce(by), (0, start // by))
    share = OPENED_SIDE / max(photo.size)
    if share >= 1:
        return photo
    return photo.resize([max(1, round(side * share)) for side in photo.size], Image.Resampling.BOX)


def _strips(image: Image.Image, by: int = 1) -> Iterator[tuple[int, Image.Image]]:
    """Yield a picture in strips of rows, a multiple of `by` in each but the last, and the first row of each."""
    image.load()
    width, height = image.size
    rows = max(1, _STRIP // width // by) * by
    for start in range(0, height, rows):
        yield start, image.crop((0, start, width, min(start + rows, height)))


ONE_COLOUR = 20
"""Levels of 255 by which the pixels of one colour differ at most, in each channel."""


def is_one_colour(photo: Image.Image) -> bool:
    """Return whether all pixels of a picture have the same colour, as far as one can see."""
    return all(high - low < ONE_COLOUR for low, high in _extrema(photo))


def _differs(image: Image.Image, ground: str) -> bool:
    """Return whether anything can be seen of a picture with transparency over a colour."""
    ends = [_extrema(_to_rgb(strip, ground=ground)) for _, strip in _strips(image)]
    return any(
        max(high for _, high in channel) - min(low for low, _ in channel) >= ONE_COLOUR
        for channel in zip(*ends, strict=True)
    )


def _extrema(photo: Image.Image) -> list[tuple[int, int]]:
    """Return the darkest and the lightest level of each channel of a picture."""
    return [channel.getextrema() for channel in photo.convert("RGB").split()]


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; a photo with unreadable EXIF counts as upright."""
    try:
        return image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # the EXIF block is a file of its own, and damaged as often
        return 1


def _to_rgb(image: Image.Image, top: int = 65535, ground: str = "white") -> Image.Image:
    """Return a decoded image of any mode as RGB: grey of 16 bits up to `top`, and transparency over a colour."""
    if image.mode.startswith("I"):
        levels = np.asarray(image).clip(0, 65535).astype(np.uint32)
        grey = Image.fromarray(((levels * 255 + top // 2) // top).astype(np.uint8))
        if isinstance(clear := image.info.get("transparency"), int):
            grey.putalpha(Image.fromarray(np.where(levels == clear, 0, 255).astype(np.uint8)))
        image = grey
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    photo = Image.new("RGB", layer.size, ground)
    photo.paste(layer, mask=layer)
    return photo


@dataclass(frozen=True)
class Crop:
    """Position of a model's input on a photo: edges of the crop, in photo pixels, and both sizes in pixels.

    Coordinates are those of edges, not of pixel centres: x runs from 0 at the left edge of the first column to the
    width at the right edge of the last.
    """

    left: float
    top: float
    right: float
    bottom: float
    photo_width: int
    photo_height: int
    width: int
    height: int

    @property
    def box(self) -> tuple[float, float, float, float]:
        """(left, top, right, bottom) in photo pixels."""
        return self.left, self.top, self.right, self.bottom

    def to_photo(self, x: float, y: float) -> tuple[float, float]:
        """Return the point of the photo that lies under the point (x, y) of the model's input."""
        return _between(self.left, self.right, x / self.width), _between(self.top, self.bottom, y / self.height)

    def to_input(self, x: float, y: float) -> tuple[float, float]:
        """Return the point of the model's input over the point (x, y) of the photo, which may lie outside the crop."""
        return (
            (x - self.left) / (self.right - self.left) * self.width,
            (y - self.top) / (self.bottom - self.top) * self.height,
        )


def centre_crop(photo: Image.Image, height: int, width: int, *, share: float = 1.0) -> tuple[Image.Image, Crop]:
    """Return the centre of a photo at the model's input size, and its position on the photo.

    The largest box of the shape height:width about the centre, `share` of its sides (0.875 is the usual 224 of 256),
    resized with antialiasing as the evaluation transforms of torchvision do. The image is width × height pixels.

    Raises ValueError if a size is below 1 or the share is not in (0, 1].
    """
    if height < 1 or width < 1:
        raise ValueError(f"A model's input of {height} × {width} pixels can't be cut; expected at least 1 × 1")
    if not 0 < share <= 1:
        raise ValueError(f"A share of {share} of the photo can't be cut; expected more than 0 and at most 1")
    scale = min(photo.width / width, photo.height / height) * share
    across, down = min(width * scale, photo.width), min(height * scale, photo.height)
    left, top = (photo.width - across) / 2, (photo.height - down) / 2
    right, bottom = min(left + across, photo.width), min(top + down, photo.height)
    crop = Crop(left, top, right, bottom, photo.width, photo.height, width, height)
    return photo.resize((width, height), Image.Resampling.BICUBIC, box=crop.box), crop


def patch_boxes(crop: Crop, rows: int, columns: int) -> list[tuple[float, float, float, float]]:
    """Return (left, top, right, bottom) in photo pixels of each of rows × columns patches, in raster order.

    The boxes tile the crop exactly: neighbours share an edge to the last bit, and the outer edges are the crop's.

    Raises ValueError if a number is below 1.
    """
    if rows < 1 or columns < 1:
        raise ValueError(f"A grid of {rows} × {columns} patches has no patch; expected at least 1 × 1")
    xs = [_between(crop.left, crop.right, column / columns) for column in range(columns + 1)]
    ys = [_between(crop.top, crop.bottom, row / rows) for row in range(rows + 1)]
    return [(xs[j], ys[i], xs[j + 1], ys[i + 1]) for i in range(rows) for j in range(columns)]


def _between(start: float, stop: float, share: float) -> float:
    """Interpolate so that shares 0 and 1 give the ends exactly."""
    return start * (1 - share) + stop * share


def to_array(image: Image.Image, mean: Sequence[float] | float, std: Sequence[float] | float) -> np.ndarray:
    """Return float32 [C, H, W]: values of 0 to 1, minus the mean and over the standard deviation of each channel.

    Raises ValueError if there are not as many means and deviations as channels.
    """
    values = np.atleast_3d(np.asarray(image, dtype=np.float32)) / np.float32(255)
    channels = values.shape[2]
    mean, std = (np.atleast_1d(np.asarray(statistic, dtype=np.float32)) for statistic in (mean, std))
    if any(len(statistic) not in (1, channels) for statistic in (mean, std)):
        raise ValueError(
            f"{len(mean)} means and {len(std)} deviations were given; expected {channels}, one per channel"
        )
    return np.ascontiguousarray(((values - mean) / std).transpose(2, 0, 1))


def sample_photos() -> dict[str, Callable[[], Image.Image]]:
    """Return the sample photos by name, each a function that opens it; `photos/CREDITS.md` names their owners."""
    folder = resources.files("tracer") / "inputs" / "photos"
    return {name: partial(_open_file, folder / f"{name}.jpg") for name in SAMPLES}


def sample_photo(name: str = SAMPLES[0]) -> Image.Image:
    """Return the sample photo of that name, mode RGB. Raises ValueError for a name that is not in `SAMPLES`."""
    if name not in SAMPLES:
        raise ValueError(f"There is no sample photo {quote(name)}; expected one of {', '.join(SAMPLES)}")
    return sample_photos()[name]()


def shows_none(name: str, classes: Sequence[str]) -> bool:
    """Return whether a sample photo shows none of the classes: they name other samples, but not this one."""
    return name in SAMPLES and name not in classes and not set(SAMPLES).isdisjoint(classes)


def _open_file(file: Traversable) -> Image.Image:
    return open_photo(file.read_bytes())
