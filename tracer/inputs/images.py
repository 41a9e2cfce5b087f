"""Photos: the one function that opens them, and the position of the model's input on them.

`open_photo` decodes bytes from anywhere into an RGB picture or refuses them in one sentence. `centre_crop` cuts it to
the size that a model takes and remembers the cut as a `Crop`, so that `patch_boxes` can say which pixels of the photo a
patch is. Nothing here imports torch: a photo is on the page before torch is.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from importlib.resources.abc import Traversable
from io import BytesIO

import numpy as np
from PIL import Image

from tracer.inputs import png
from tracer.inputs.image_headers import jpeg_buffer, picture_format, picture_size
from tracer.utils.error_text import quote

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
    applied, transparency is laid over white, and 16 bit grey is scaled to 8.

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
        photo = _decode(data, size) if name != "PNG" or png.is_whole(data) else None
    except Exception:  # decoders raise all sorts of things on damaged bytes
        photo = None
    if photo is None:
        raise ValueError(f"This {name} file of {len(data):,} bytes is cut off or damaged; expected a whole picture")
    photo.info = {}  # whoever keeps the photo does not keep where it was taken
    return photo


def _checked_header(data: bytes) -> tuple[str, tuple[int, int]]:
    """Return the format's name and (width, height) in pixels, after every check that needs no decoder."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise ValueError(f"A photo is given as the bytes of a file, not as {quote(data)}; {_EXPECTATION}")
    if len(data) > MAX_BYTES:
        raise ValueError(f"This file has {len(data):,} bytes; expected at most {MAX_BYTES:,} (10 MB)")
    data = bytes(data)
    if not data:
        raise ValueError(f"This file is empty (0 bytes); {_EXPECTATION}")
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
        import pillow_heif  # may not be installed

        pillow_heif.register_heif_opener(thumbnails=False)
    return tuple(name for name in _FORMATS if name in Image.OPEN)  # Pillow builds without some


def _decode(data: bytes, size: tuple[int, int]) -> Image.Image:
    """Return the first frame as RGB, upright. Raises whatever the decoder does, and if it reads another size."""
    with Image.open(BytesIO(data), formats=_formats()) as image:
        cut = image.format in ("AVIF", "HEIF") and image.width * image.height <= size[0] * size[1]  # and turned
        if image.size != size and not cut:
            raise ValueError(f"the decoder reads {image.size}, the header {size}")
        turn = _UPRIGHT.get(_orientation(image))
        photo = _shrink(image)
    return photo if turn is None else photo.transpose(turn)


def _shrink(image: Image.Image) -> Image.Image:
    """Return a picture as RGB, shrunk so that its longer side is `OPENED_SIDE` at most; the decoded pixels are held
    once.

    Each pixel is the mean of those that it replaces. A JPEG is decoded smaller, in half, a quarter or an eighth of the
    size, as far as that goes; all others are converted and shrunk strip by strip, by a whole number, and then to size.
    """
    by = max(1, max(image.size) // OPENED_SIDE)
    if by > 1 and image.format == "JPEG":
        image.draft(None, (-(-image.width // by), -(-image.height // by)))
        by = max(1, max(image.size) // OPENED_SIDE)
    if by == 1:
        photo = image if image.mode == "RGB" and max(image.size) > OPENED_SIDE else _to_rgb(image)
    else:
        image.load()
        width, height = image.size
        photo, rows = Image.new("RGB", (-(-width // by), -(-height // by))), max(1, _STRIP // width // by) * by
        for top in range(0, height, rows):
            strip = image.crop((0, top, width, min(top + rows, height)))
            photo.paste(_to_rgb(strip).reduce(by), (0, top // by))
    share = OPENED_SIDE / max(photo.size)
    if share >= 1:
        return photo
    return photo.resize([max(1, round(side * share)) for side in photo.size], Image.Resampling.BOX)


def _orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; a photo with unreadable EXIF counts as upright."""
    try:
        return image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # the EXIF block is a file of its own, and damaged as often
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return a decoded image of any mode as RGB, transparency over white."""
    if image.mode.startswith("I"):
        levels = np.asarray(image).clip(0, 65535).astype(np.uint32)
        grey = Image.fromarray(((levels * 255 + 32767) // 65535).astype(np.uint8))
        if isinstance(clear := image.info.get("transparency"), int):
            grey.putalpha(Image.fromarray(np.where(levels == clear, 0, 255).astype(np.uint8)))
        image = grey
    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    photo = Image.new("RGB", layer.size, "white")
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


def centre_crop(
    photo: Image.Image,
    height: int,
    width: int,
    *,
    share: float = 1.0,
    resample: Image.Resampling = Image.Resampling.BICUBIC,
) -> tuple[Image.Image, Crop]:
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
    return photo.resize((width, height), resample, box=crop.box), crop


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
