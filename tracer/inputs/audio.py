"""Sounds: generated ones, and the one function that opens WAV files. Nothing here imports torch.

The layout of a file is that of Microsoft's and IBM's Multimedia Programming Interface 1.0 (1991), chapter 3, with the
extensible format of `mmreg.h`: chunks of four letters, a length and so many bytes, padded to an even number.
"""

from __future__ import annotations

import struct
import wave
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from math import pi
from typing import NamedTuple

import numpy as np

from tracer.utils.files import checked_bytes

RATE = 8000
"""Samples a second that all sounds have here: what lies above 4 kHz is cut off."""
MAX_BYTES = 4 * 2**20
MAX_SECONDS, MIN_SECONDS = 5.0, 0.1
"""Seconds of a sound that is opened."""
RATES = (4000, 96_000)
"""Samples a second that a file may have, from least to most."""
CHUNKS = 100
"""Chunks of a file that are looked at before its samples must have begun."""

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
_CODECS = {2: "ADPCM", FLOAT: "floating-point numbers", 6: "A-law", 7: "µ-law", 17: "ADPCM", 85: "MP3"}
_SUBFORMAT = bytes.fromhex("0000 1000 8000 00AA 0038 9B71")
"""What follows the first four bytes of the name of a format in `mmreg.h`."""
_EXPECTATION = "expected a WAV file (PCM, 8, 16, 24 or 32 bit, mono or stereo)"
_FOREIGN_FORMATS = {
    "an MP3 file": b"ID3",
    "an Ogg file": b"OggS",
    "a FLAC file": b"fLaC",
    "a big-endian WAV file": b"RIFX",
}


class WavHeader(NamedTuple):
    """Header of a WAV file: channels, samples a second, bytes of a number."""

    channels: int
    rate: int
    width: int


def open_sound(data: bytes) -> np.ndarray:
    """Return the sound in the bytes of a WAV file: float32 `[T]` from -1 to 1, mono, at `RATE`.

    PCM of 8, 16, 24 or 32 bit, mono or stereo, 4 to 96 kHz, 0.1 to 5 seconds. Two channels become their mean. Raise
    ValueError with one sentence for anything else. Only the bytes in the file are read: a header that promises more
    costs nothing.
    """
    form, samples = _chunks(checked_bytes(data, "sound", MAX_BYTES, _EXPECTATION))
    whole = len(samples) // (form.width * form.channels)
    seconds = whole / form.rate
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise ValueError(f"This sound is {seconds:.2f} s long; expected {MIN_SECONDS:g} to {MAX_SECONDS:g} s")
    numbers = _numbers(samples[: whole * form.width * form.channels], form.width)
    return resample(numbers.reshape(whole, form.channels).mean(axis=1), form.rate)


def _chunks(data: bytes) -> tuple[WavHeader, bytes]:
    """Return the header, and the bytes of the samples. Raise ValueError for an unsupported file."""
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        known = next((name for name, start in _FOREIGN_FORMATS.items() if data.startswith(start)), None)
        kind = known or f"not a known sound (it starts with the bytes {data[:12].hex(' ')})"
        raise ValueError(f"This file is {kind}; {_EXPECTATION}")
    at, form = 12, None
    for _ in range(CHUNKS):
        if at + 8 > len(data):
            break
        name, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        body = data[at + 8 : at + 8 + size]
        if name == b"fmt ":
            form = _format(body)
        elif name == b"data" and form:
            if size > len(body) and size < 0xFFFF_F000:  # programs that write as they go leave the length open
                raise ValueError(
                    f"This WAV file promises {size:,} bytes of samples and has {len(body):,}: it is cut off"
                )
            return form, body
        at += 8 + size + size % 2
    missing = "samples" if form else "format"
    raise ValueError(f"This WAV file of {len(data):,} bytes has no {missing}: it is cut off or damaged")


def _format(body: bytes) -> WavHeader:
    """Return the content of the `fmt ` chunk. Raise ValueError for another codec, or for unsupported numbers."""
    if len(body) < 16:
        raise ValueError(f"This WAV file's format has {len(body)} bytes; expected at least 16")
    codec, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", body)
    if codec == EXTENSIBLE and len(body) >= 40 and body[28:40] == _SUBFORMAT:
        codec = struct.unpack_from("<I", body, 24)[0]
    if codec != PCM:
        codec_name = _CODECS.get(codec, f"format number {codec}")
        raise ValueError(f"This WAV file contains {codec_name}; expected PCM of 8, 16, 24 or 32 bit")
    if channels not in (1, 2):
        raise ValueError(f"This WAV file has {channels} channels; expected 1 or 2")
    if bits not in (8, 16, 24, 32):
        raise ValueError(f"This WAV file has {bits} bits a sample; expected 8, 16, 24 or 32")
    if not RATES[0] <= rate <= RATES[1]:
        raise ValueError(f"This WAV file has {rate:,} samples a second; expected {RATES[0]:,} to {RATES[1]:,}")
    if block != channels * bits // 8:
        raise ValueError(f"This WAV file says {block} bytes for {channels} × {bits} bits: its header is damaged")
    return WavHeader(channels, rate, bits // 8)


def _numbers(samples: bytes, width: int) -> np.ndarray:
    """Return samples as numbers from -1 to 1: 8 bit is unsigned, the others are signed, little endian."""
    if width == 1:
        return (np.frombuffer(samples, np.uint8).astype(np.float32) - 128) / 128
    padded = np.zeros((len(samples) // width, 4), np.uint8)
    padded[:, 4 - width :] = np.frombuffer(samples, np.uint8).reshape(-1, width)
    return (padded.view("<i4")[:, 0] / 2**31).astype(np.float32)


def resample(numbers: np.ndarray, rate: int) -> np.ndarray:
    """Resample a sound of `rate` samples per second to `RATE`, without its frequencies above half of that."""
    if rate == RATE:
        return numbers.astype(np.float32)
    seconds = -(-len(numbers) // rate)  # silence up to a whole second, so that both have a whole number of samples
    spectrum = np.fft.rfft(numbers, seconds * rate)[: seconds * RATE // 2 + 1]
    resampled = np.fft.irfft(spectrum, seconds * RATE) * (RATE / rate)
    return np.clip(resampled[: max(1, round(len(numbers) * RATE / rate))], -1, 1).astype(np.float32)


def to_wav(numbers: np.ndarray) -> bytes:
    """Return a sound `[T]` from -1 to 1 as a WAV file of 16 bit, mono, at `RATE`."""
    file = BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(RATE)
        out.writeframes(np.rint(np.clip(numbers, -1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()


SECONDS = 1.024
"""Length of the sounds that are made here: 64 × 128 samples."""


def _seconds() -> np.ndarray:
    return np.arange(round(SECONDS * RATE)) / RATE


def sweep(start: float, stop: float) -> np.ndarray:
    """Return a linear sweep from one frequency to another, in Hz."""
    t = _seconds()
    return (0.6 * np.sin(2 * pi * (start * t + (stop - start) * t * t / (2 * SECONDS)))).astype(np.float32)


def notes(frequencies: tuple[float, ...]) -> np.ndarray:
    """Return notes one after the other, each with three overtones, that fade."""
    t, sound = _seconds(), np.zeros(round(SECONDS * RATE))
    length = SECONDS / len(frequencies)
    for number, frequency in enumerate(frequencies):
        since = t - number * length
        fading = np.where(since >= 0, np.exp(-4 * np.maximum(since, 0) / length), 0) * (since < length)
        sound += fading * sum(np.sin(2 * pi * k * frequency * since) / k for k in range(1, 5))
    return (0.3 * sound).astype(np.float32)


def taps(count: int, seed: int = 0) -> np.ndarray:
    """Return short bursts of noise."""
    t, noise = _seconds(), np.random.default_rng(seed).normal(size=round(SECONDS * RATE))
    return (0.3 * np.exp(-60 * (t % (SECONDS / count))) * noise).clip(-1, 1).astype(np.float32)


SYNTHETIC_SOUNDS: dict[str, Callable[[], np.ndarray]] = {
    "chirp": lambda: sweep(200, 3600),
    "melody": lambda: notes((262, 330, 392, 523)),
    "taps": lambda: taps(5),
}
"""The sounds that are made here, by name: float32 `[8192]`."""


@lru_cache(maxsize=1)
def lesson() -> np.ndarray:
    """Return the training set of codebooks: other sweeps, melodies and taps than those in `SYNTHETIC_SOUNDS`, float32
    `[9, 8192]`."""
    sweeps = [sweep(start, stop) for start, stop in ((100, 2000), (3900, 300), (1500, 3900))]
    played = [notes(each) for each in ((196, 247, 294, 392, 494), (440, 220, 880), (659, 587, 523, 494))]
    return np.stack([*sweeps, *played, *(taps(count, seed) for count, seed in ((4, 1), (7, 2), (2, 3)))])
