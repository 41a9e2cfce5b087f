"""Sounds: small WAV files of every format that opens, damaged in bytes and in their header."""

import struct
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np

from tests.fuzz import mutate
from tracer.figures import media as pictures
from tracer.inputs import audio
from tracer.lessons.tokenization import sound

NUMBERS = (0, 1, 2, 3, 7, 8, 16, 24, 32, 4000, 8000, 96_000, 0xFFFE, 0xFFFF, 2**31 - 1, 2**32 - 1)
HEADER = 44


def make_input(chance: Random, folder: Path) -> bytes:
    """Return the bytes of a file."""
    data = chance.choice(originals())
    if chance.random() < 0.5:
        data = _change_header(data, chance)
    return mutate.damage(data, chance) if chance.random() < 0.6 else data


def open_input(data: bytes, chance: Random) -> np.ndarray:
    """Return the sound. Raise ValueError for one that is refused."""
    return audio.open_sound(data)


def show_input(numbers: np.ndarray, chance: Random) -> None:
    """Draw the sound as the page of tokens does, and encode it for playback."""
    assert numbers.ndim == 1 and np.isfinite(numbers).all() and np.abs(numbers).max() <= 1, "a sound is from -1 to 1"
    assert audio.open_sound(audio.to_wav(numbers)).shape == numbers.shape
    logs = sound.spectrogram(numbers)
    pictures.draw_spectrogram(numbers, logs, sound.WINDOW, sound.HOP, chance.randrange(len(logs)))


@lru_cache(maxsize=1)
def originals() -> tuple[bytes, ...]:
    """Return files that open: each width, mono and stereo, slow and fast."""
    found = []
    for width in (1, 2, 3, 4):
        for channels, rate in ((1, 8000), (2, 8000), (1, 44_100), (2, 4000)):
            frame = width * channels
            body = Random(frame + rate).randbytes(frame * (rate // 8))
            head = struct.pack("<HHIIHH", 1, channels, rate, rate * frame, frame, 8 * width)
            chunks = b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(body)) + body
            found.append(b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks)
    return tuple(found)


def _change_header(data: bytes, chance: Random) -> bytes:
    """Return the file with a number of its header changed to another that means something."""
    at, form = chance.choice([(place, form) for form in ("<H", "<I") for place in range(4, HEADER - 3, 2)])
    number = chance.choice(NUMBERS) & (0xFFFF if form == "<H" else 0xFFFFFFFF)
    return data[:at] + struct.pack(form, number) + data[at + struct.calcsize(form) :]
