"""WAV files that are opened: the sound is the one that was written, and anything else is refused in one sentence."""

import io
import struct
import time
import wave

import numpy as np
import pytest

from tracer.inputs.audio import MAX_BYTES, RATE, SYNTHETIC_SOUNDS, open_sound, to_wav

TONE = 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)


def pcm(numbers: np.ndarray, width: int = 2, rate: int = RATE, channels: int = 1) -> bytes:
    """Return a WAV file as Python's own library writes it."""
    file, whole = io.BytesIO(), np.repeat(numbers, channels)
    with wave.open(file, "wb") as out:
        out.setnchannels(channels)
        out.setsampwidth(width)
        out.setframerate(rate)
        if width == 1:
            out.writeframes(np.rint(whole * 127 + 128).astype(np.uint8).tobytes())
        else:
            scaled = np.rint(whole * (2 ** (8 * width - 1) - 1)).astype("<i4")
            out.writeframes(scaled.view(np.uint8).reshape(-1, 4)[:, :width].tobytes())
    return file.getvalue()


def chunk(name: bytes, body: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(body) if size is None else size) + body


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return chunk(b"RIFF", body)


def fmt(codec: int = 1, channels: int = 1, rate: int = RATE, bits: int = 16, block: int | None = None) -> bytes:
    block = channels * bits // 8 if block is None else block
    return chunk(b"fmt ", struct.pack("<HHIIHH", codec, channels, rate, rate * block % 2**32, block, bits))


EXTENSIBLE = struct.pack("<HHIIHHHHIIHH8s", 0xFFFE, 1, RATE, RATE * 3, 3, 24, 22, 24, 4, 1, 0, 16,
                         bytes.fromhex("800000AA00389B71"))  # fmt: skip
DATA = chunk(b"data", bytes(2 * RATE))


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_what_is_written_is_what_is_heard(width, channels):
    made = open_sound(pcm(TONE, width, channels=channels))
    assert made.dtype == np.float32 and len(made) == len(TONE)
    assert abs(made - TONE).max() < 2.0 ** (2 - 8 * width) + 1e-6


@pytest.mark.parametrize("rate", [4000, 11_025, 44_100, 48_000, 95_989])
def test_another_rate_keeps_tone_and_length(rate):
    t = np.arange(rate) / rate
    made = open_sound(pcm(0.5 * np.sin(2 * np.pi * 440 * t), rate=rate))
    assert len(made) == RATE
    assert abs(made - TONE).max() < 1e-3
    shrill = open_sound(pcm(0.5 * np.sin(2 * np.pi * 5000 * t), rate=rate)) if rate > 10_000 else np.zeros(1)
    assert abs(shrill).max() < 1e-3  # above 4 kHz nothing is left, and nothing is folded down


def test_stereo_is_the_mean_and_the_extensible_format_is_read():
    both = np.stack([TONE, -TONE], axis=1).ravel()
    file = riff(fmt(channels=2), chunk(b"data", np.rint(both * 32767).astype("<i2").tobytes()))
    assert abs(open_sound(file)).max() < 1e-4
    body = pcm(TONE, 3)[44:]
    assert abs(open_sound(riff(chunk(b"fmt ", EXTENSIBLE), chunk(b"data", body))) - TONE).max() < 1e-5
    listed = riff(chunk(b"LIST", b"odd"), b"\0", fmt(), DATA)
    assert len(open_sound(listed)) == RATE
    for sound in SYNTHETIC_SOUNDS.values():
        assert abs(open_sound(to_wav(sound())) - sound()).max() < 1e-4


BAD = {
    "nothing": (b"", "empty"),
    "text": (b"Hello, this is not a sound at all", "starts with the bytes"),
    "an MP3 file": (b"ID3" + bytes(100), "MP3"),
    "a header alone": (b"RIFF\x24\0\0\0WAVE", "no format"),
    "no samples": (riff(fmt()), "no samples"),
    "samples before the format": (riff(DATA, fmt()), "no samples"),
    "a short format": (riff(chunk(b"fmt ", bytes(9)), DATA), "9 bytes"),
    "floats": (riff(fmt(codec=3, bits=32), DATA), "floating-point"),
    "µ-law": (riff(fmt(codec=7, bits=8), DATA), "µ-law"),
    "an unknown codec": (riff(fmt(codec=4711), DATA), "4711"),
    "no channel": (riff(fmt(channels=0, block=2), DATA), "0 channels"),
    "65,535 channels": (riff(fmt(channels=65_535, block=2), DATA), "65535 channels"),
    "no bits": (riff(fmt(bits=0), DATA), "0 bits"),
    "12 bits": (riff(fmt(bits=12, block=2), DATA), "12 bits"),
    "no rate": (riff(fmt(rate=0), DATA), "0 samples a second"),
    "4 billion samples a second": (riff(fmt(rate=2**32 - 1), DATA), "4,294,967,295"),
    "a block that does not fit": (riff(fmt(block=7), DATA), "7 bytes"),
    "4 GB promised": (riff(fmt(), chunk(b"data", bytes(99), 2**32 - 10_000)), "cut off"),
    "cut off": (pcm(TONE)[:-500], "cut off"),
    "a chunk of 4 GB before": (riff(chunk(b"JUNK", b"", 2**32 - 1), fmt(), DATA), "no format"),
    "a hundred thousand chunks": (riff(*[chunk(b"JUNK", b"")] * 100_000, fmt(), DATA), "no format"),
    "too short": (pcm(TONE[:100]), "0.01 s"),
    "no sample at all": (pcm(TONE[:0]), "0.00 s"),
    "too long": (pcm(np.tile(TONE, 6)), "6.00 s"),
    "too large": (pcm(TONE) + bytes(MAX_BYTES), "at most"),
    "a string": ("RIFF", "not as 'RIFF'"),
}


@pytest.mark.parametrize("name", BAD)
def test_anything_else_is_refused_in_one_sentence_at_once(name):
    data, said = BAD[name]
    began = time.process_time()
    with pytest.raises(ValueError, match=said) as refused:
        open_sound(data)
    assert time.process_time() - began < 0.5
    sentence = str(refused.value)
    assert len(sentence) < 200 and "\n" not in sentence and not sentence.endswith(".")


def test_damaged_files_are_heard_or_refused():
    whole, random = pcm(TONE[:2000]), np.random.default_rng(0)
    for _ in range(300):
        data = bytearray(whole[: random.integers(len(whole)) if random.random() < 0.3 else None])
        for _ in range(random.integers(1, 5)):
            if data:
                data[random.integers(min(60, len(data)))] = random.integers(256)
        try:
            made = open_sound(bytes(data))
        except ValueError as error:
            assert "\n" not in str(error)
        else:
            assert made.ndim == 1 and np.isfinite(made).all() and len(made) <= 5.01 * RATE
