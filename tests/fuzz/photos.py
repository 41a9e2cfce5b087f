"""Photos: small ones of every format damaged in bytes and in structure, and generated ones that are large when open."""

import struct
import zlib
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from random import Random

from PIL import Image

from tests.fuzz import mutate
from tracer.figures import tensors
from tracer.inputs import images

KINDS = (
    *(("PNG", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    *(("JPEG", mode, {"quality": 50}) for mode in ("L", "RGB", "CMYK")),
    (
        "JPEG",
        "RGB",
        {"progressive": True, "exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"},
    ),
    *(("WebP", mode, {"lossless": lossless}) for mode in ("RGB", "RGBA") for lossless in (True, False)),
    *(("GIF", mode, {}) for mode in ("L", "P")),
    *(("BMP", mode, {}) for mode in ("1", "L", "P", "RGB", "RGBA")),
)
SIDES = (0, 1, 2, 17, 255, 7_000, 16_383, 16_384, 40_000, 65_535, 50_000_000, 2**31 - 1, 2**32 - 1)


def make_input(chance: Random, folder: Path) -> bytes:
    """Return the bytes of a file."""
    if chance.random() < 0.03:
        return generate(chance)
    data = chance.choice(originals())
    if chance.random() < 0.4:
        data = _restructure(data, chance)
    return mutate.damage(data, chance) if chance.random() < 0.7 else data


def open_input(data: bytes, chance: Random) -> Image.Image:
    """Return the photo. Raise ValueError for one that is refused."""
    return images.open_photo(data)


def show_input(photo: Image.Image, chance: Random) -> None:
    """Draw the photo as the pages do, and prepare it for a model."""
    assert photo.mode == "RGB" and not photo.info, "a photo is RGB, without what its file says of it"
    image, crop = images.centre_crop(photo, 32, 32)
    images.to_array(image, 0.5, 0.5)
    if chance.random() < 0.25:
        tensors.grid(photo, crop, 8, 8)
        tensors.patches(image, 8, 8)


@lru_cache(maxsize=1)
def originals() -> tuple[bytes, ...]:
    """Return photos that open, one of each kind, and an animation."""
    colours = Image.linear_gradient("L").resize((19, 13))
    colours = Image.merge("RGB", (colours, colours.rotate(180), Image.new("L", (19, 13), 90)))
    found = [
        _file(colours.convert("L" if mode == "I;16" else mode).convert(mode), name, **more)
        for name, mode, more in KINDS
    ]
    frames = [colours.convert("P"), colours.rotate(180).convert("P")]
    found.append(_file(frames[0], "GIF", save_all=True, append_images=frames[1:], transparency=3))
    found.append(_file(colours, "WebP", save_all=True, append_images=[colours.rotate(180)]))
    return tuple(found)


def _file(image: Image.Image, name: str, **options) -> bytes:
    image.save(file := BytesIO(), name, **options)
    return file.getvalue()


def generate(chance: Random) -> bytes:
    """Return a picture of one colour, small as a file: of any sides, or with blocks of text that unpack to
    megabytes."""
    if chance.random() < 0.5:
        text = zlib.compress(bytes(chance.choice((10, 10**5, 2 * 10**7))), 9)
        kind = chance.choice((b"zTXt", b"iTXt", b"iCCP", b"eXIf", b"tEXt"))
        front = {b"iTXt": b"a\0\1\0\0\0", b"eXIf": b"MM\0*"}.get(kind, b"a\0\0")
        return _png(chance, 3, 2, _chunk(kind, front + text) * chance.choice((1, 1, 20)))
    width, height = (
        max(1, int(10 ** (chance.random() * most))) for most in chance.choice(((3, 3), (1, 7.7), (4.2, 3.5)))
    )
    return _png(chance, width, height, b"")


def _png(chance: Random, width: int, height: int, more: bytes) -> bytes:
    depth, colour, channels = chance.choice(((1, 0, 1 / 8), (8, 0, 1), (8, 2, 3), (8, 6, 4), (16, 0, 2), (16, 6, 8)))
    row, packer = 1 + int(-(-width * channels // 1)), zlib.compressobj(9)
    rows = max(1, min(height, (1 << 24) // row))
    packed = b"".join(
        packer.compress(bytes(row * min(rows, height - at))) for at in range(0, min(height, 8 * rows), rows)
    )
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, chance.choice((0, 0, 1)))
    body = _chunk(b"IHDR", head) + more + _chunk(b"IDAT", packed + packer.flush()) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _restructure(data: bytes, chance: Random) -> bytes:
    """Change the sizes in the header, with correct checksums; double, omit or move parts."""
    side = chance.choice(SIDES)
    if data.startswith(b"\x89PNG"):
        chunks, at = [], 8
        while at < len(data):
            length = int.from_bytes(data[at : at + 4], "big")
            chunks.append([data[at + 4 : at + 8], data[at + 8 : at + 8 + length]])
            at += length + 12
        one = chance.choice(chunks)
        match chance.randrange(5):
            case 0:
                chunks.insert(chance.randrange(len(chunks) + 1), list(one))
            case 1:
                chunks.remove(one)
            case 2:
                chance.shuffle(chunks)
            case 3:
                at = chance.choice((0, 4))
                chunks[0][1] = chunks[0][1][:at] + side.to_bytes(4, "big") + chunks[0][1][at + 4 :]
            case _:
                one[1] = mutate.damage(one[1], chance)
        return data[:8] + b"".join(_chunk(*chunk) for chunk in chunks)
    if data.startswith(b"\xff\xd8"):
        frame = max(data.find(b"\xff\xc0"), data.find(b"\xff\xc2"))
        at = frame + chance.choice((5, 7))
        return data[:at] + (side & 0xFFFF).to_bytes(2, "big") + data[at + 2 :]
    at, size = {b"GIF": (chance.choice((6, 8)), 2), b"BM": (chance.choice((18, 22)), 4)}.get(
        data[:3] if data[:3] == b"GIF" else data[:2], (chance.choice((21, 24, 27, 26)), chance.choice((2, 3)))
    )
    return data[:at] + (side & (1 << 8 * size) - 1).to_bytes(size, "little") + data[at + size :]
