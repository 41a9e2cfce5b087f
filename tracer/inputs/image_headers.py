"""Format and size of a picture, read from its first bytes: no pixel is decoded and no buffer allocated.

The layouts are those of the PNG specification (section 11.2.2), ITU-T T.81 (B.2.2), the WebP container specification,
GIF89a (sections 18 and 20), Microsoft's BITMAPINFOHEADER, and ISO/IEC 14496-12 and 23008-12 (HEIF).
"""

import re
import struct
from collections.abc import Iterator

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
