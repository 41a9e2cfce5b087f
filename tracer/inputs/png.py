"""A check that a PNG file holds all of its rows: decoders accept one whose stream ends early.

Source: PNG specification (third edition), sections 5.3 (chunks), 7.2 (scanlines) and 8.1 (Adam7).
"""

import struct
import zlib
from collections.abc import Iterator

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
