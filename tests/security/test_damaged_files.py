"""Damaged and foreign files are refused in one sentence, and files that are only written anew are not."""

import io
import json
import os
import pickle
import zipfile

import pytest
import safetensors.torch
import torch

from tests.serialization.test_serialization import refusal, rewritten
from tests.support.handmade import sample
from tracer import serialization


@pytest.fixture(scope="module")
def data() -> bytes:
    return serialization.to_bytes(sample())


@pytest.mark.parametrize("share", [0, 0.0001, 0.001, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.9999])
def test_truncated_files(data, share):
    refusal(data[: int(len(data) * share)])
    refusal(data[:-1])
    with pytest.raises(ValueError, match="it is cut off"):
        serialization.open(data[:-1])


def test_appended_bytes(data):
    refusal(data + b"\0")


def test_flipped_bytes_never_crash(data):
    """A flipped bit in a tensor is another number; one in the header is refused, or read as another valid trace."""
    length = int.from_bytes(data[:8], "little")
    for position in [*range(8), *range(8, 8 + length, 173)]:
        broken = bytearray(data)
        broken[position] ^= 0x15
        try:
            serialization.open(bytes(broken), name="upload.safetensors")
        except ValueError as error:
            assert "\n" not in str(error) and "'upload.safetensors'" in str(error)


def make_zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data.pkl", "x" * 100)
    return file.getvalue()


def saved_by_torch() -> bytes:
    file = io.BytesIO()
    torch.save({"a": torch.ones(3)}, file)
    return file.getvalue()


class Touch:
    """A pickle that would run code."""

    def __reduce__(self):
        return os.system, ("touch /tmp/executed-by-a-pickle",)


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"\0" * 8,
        b"hello, this is a text file\n",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 64,
        (1 << 63).to_bytes(8, "little") + b"{}",
        (1 << 40).to_bytes(8, "little") + b"{}" * 20,
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"null",
        (3).to_bytes(8, "little") + b"\xff\xfe\xfd",
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        make_zip(),
        saved_by_torch(),
        pickle.dumps(Touch()),
        safetensors.torch.save({"weight": torch.ones(3)}),
        safetensors.torch.save({"weight": torch.ones(3)}, {"format": "pt"}),
        *(
            safetensors.torch.save({}, {"trace": text})
            for text in ("{}", "null", "[]", "3", "[" * 50_000, "not json", "")
        ),
        safetensors.torch.save({}, {"trace": '{"version": 99, "model": "x", "ops": []}'}),
        safetensors.torch.save({}, {"trace": '{"version": 1}'}),
    ],
)
def test_foreign_files(foreign):
    refusal(foreign)
    assert not os.path.exists("/tmp/executed-by-a-pickle")


def test_a_declared_tensor_larger_than_the_file():
    header = json.dumps({"a": {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 1 << 62]}}).encode()
    refusal(len(header).to_bytes(8, "little") + header)
    metadata = {"trace": json.dumps({"version": 1, "model": "x", "ops": [], "values": {"a": "a"}})}
    for shape, end in (([1 << 40, 1 << 20], 1 << 62), ([1 << 62, 4], 16), ([2], 16), ([-1], 4)):
        header = json.dumps(
            {"__metadata__": metadata, "a": {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}}
        ).encode()
        refusal(len(header).to_bytes(8, "little") + header + b"\0" * 16)


def test_rewriting_alone_is_accepted(data):
    assert serialization.open(rewritten(data, lambda fields: None)).model == sample().model
