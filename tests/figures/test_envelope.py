"""Messages to the browser: what Python packs is what a browser unpacks, number by number."""

import re

import numpy as np
import pytest

from tests.support.messages import unpack
from tracer.figures import scripts
from tracer.figures.envelope import HalfArray, compress, half, pack, to_text

UNPACKED = """(text) => {
  const shown = (value) => {
    const { shape, dtype } = value ?? {};
    if (dtype) return { kind: value.constructor.name, shape, dtype, numbers: Array.from(value, String) };
    if (Array.isArray(value)) return value.map(shown);
    const pairs = value && typeof value === "object" && Object.entries(value);
    if (pairs) return Object.fromEntries(pairs.map(([key, one]) => [key, shown(one)]));
    return value;
  };
  const message = decode(text);
  const shifted = new Uint8Array(message.length + 3).subarray(3); // as where other bytes are in front
  shifted.set(message);
  return [message, shifted].map((bytes) => shown(unpack(bytes)));
}"""


@pytest.fixture(scope="module")
def header() -> dict:
    """Return data with arrays of every dtype, at every depth."""
    random = np.random.default_rng(0)
    return {
        "name": "ℓ–𝓁",
        "steps": [{"id": "a.b", "cells": random.normal(size=(2, 3, 4)).astype(np.float32)}, {"id": "none"}],
        "by.name": {"x.y": half(1e-30 * random.normal(size=(3, 3)))},
        7: np.array([[0, 1, 255]], np.uint8),
        "bytes": b"\x89PNG",
        "odd": half(np.array([np.inf, -np.inf, np.nan, 0, 65504, -3e38])),
        "body": pack({"inner": np.float32([1.5, -2])}),
        "empty": np.zeros((0, 5), np.uint8),
        "nan": np.float64("nan"),
        "not": [None, True, np.float32(0.5), float("nan")],
    }


def test_what_is_packed_comes_back(header):
    found = unpack(pack(header))
    assert found["name"] == header["name"] and found["not"] == [None, True, 0.5, None]
    assert np.array_equal(found["steps"][0]["cells"], header["steps"][0]["cells"])
    assert found["steps"][1] == {"id": "none"} and "nan" in found and found["nan"] is None
    assert found["bytes"].tobytes() == b"\x89PNG" and found["empty"].shape == (0, 5)
    assert unpack(found["body"].tobytes())["inner"].tolist() == [1.5, -2]
    assert found["7"].tolist() == [[0, 1, 255]]


def test_a_browser_reads_the_same(browser, header):
    page = browser.new_page()
    script = scripts.read("envelope")
    first, shifted = page.evaluate(f"(text) => {{ {script}; return ({UNPACKED})(text); }}", to_text(pack(header)))
    page.close()
    assert first == shifted
    expected = unpack(pack(header))
    kinds = {"f4": "Float32Array", "f2": "Float32Array", "u1": "Uint8Array"}
    for shown, cells, dtype in [
        (first["steps"][0]["cells"], expected["steps"][0]["cells"], "f4"),
        (first["by.name"]["x.y"], expected["by.name"]["x.y"], "f2"),
        (first["7"], expected["7"], "u1"),
        (first["odd"], expected["odd"], "f2"),
        (first["empty"], expected["empty"], "u1"),
    ]:
        assert (shown["kind"], shown["dtype"], shown["shape"]) == (kinds[dtype], dtype, list(cells.shape))
        read = np.array([float(number) for number in shown["numbers"]], np.float32).reshape(cells.shape)
        assert np.array_equal(read, cells.astype(np.float32), equal_nan=True)
    assert first["name"] == header["name"] and first["not"] == [None, True, 0.5, None]


@pytest.mark.parametrize("size", [1e-30, 1.0, 1e30])
def test_half_precision_keeps_three_digits_of_any_size(size):
    values = np.random.default_rng(1).normal(size=500) * size
    assert np.abs(unpack(pack([half(values)]))[0] - values).max() <= 2**-11 * np.abs(values).max()


def test_few_numbers_and_large_whole_ones_keep_all_their_digits():
    few, many, whole = np.linspace(0, 1, 100), np.linspace(0, 1, 5000), np.arange(5000.0)
    assert compress(few).dtype == np.float32 and isinstance(compress(many), HalfArray)
    assert isinstance(compress(whole), HalfArray) and np.array_equal(compress(whole, exact=True), whole)


def test_an_array_of_another_dtype_is_refused():
    with pytest.raises(TypeError, match=re.escape("no arrays of int64, expected one of float32, float16, uint8")):
        pack({"ids": np.arange(3)})
