"""Readers of pictures, tooltips and numbers of a page, by what a visitor sees: the colours and the bar beside them.

Nothing here knows how a picture was drawn, and no function of the figures is called.
"""

from __future__ import annotations

import random
import re
from base64 import b64decode
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

import tracer
from tests.app.browser.test_browser import wait_until_settled

CELLS = 20
"""Cells of a picture that are read back."""

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
NUMBER = re.compile(r"[-−+]?(?:∞|\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?: × 10[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)?)")

PICTURE = """(canvas, [points, reads, bar, ends]) => {
  canvas.scrollIntoView({ block: "center" });
  const root = canvas.getRootNode();
  const around = canvas.closest(".heat, figure, .one, .tokens, .over, .left");
  const near = (selector) => around?.querySelector(selector) ?? root.querySelector(selector);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const box = canvas.getBoundingClientRect();
  const tooltips = points.map(([row, column]) => {
    const clientX = box.left + ((column + 0.5) * box.width) / canvas.width;
    const clientY = box.top + ((row + 0.5) * box.height) / canvas.height;
    const below = root.elementFromPoint(clientX, clientY);
    below.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY, bubbles: true, composed: true }));
    return reads.map((selector) => near(selector)?.textContent ?? "");
  });
  const stripe = bar && near(bar);
  const labels = ends ? [...near(ends).children].map((one) => [one.textContent, one.style.top || one.style.left]) : [];
  const paint = stripe && [null, "::before"].map((part) => getComputedStyle(stripe, part).backgroundImage);
  const pixels = btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""));
  return { width: canvas.width, height: canvas.height, pixels, tooltips, labels, paint, alt: canvas.ariaLabel };
}"""


@cache
def run(model: str, **given):
    """Return the trace of a model on its sample, cached for this process."""
    return tracer.load(model).trace(**given)


def value(trace, step: str) -> torch.Tensor:
    """Return the traced tensor of a step, in float64."""
    return torch.as_tensor(trace.value(trace.step(step))).double()


def open_address(page, address: str, ready: str) -> None:
    """Open an address and wait until its content is there."""
    page.goto(f"/{address}")
    page.locator(ready).first.wait_for()
    wait_until_settled(page)


def draw(count: int, size: Sequence[int], seed: int = 0) -> list[tuple[int, ...]]:
    """Return that many random places in a tensor of this size."""
    rng = random.Random(seed)
    return [tuple(rng.randrange(side) for side in size) for _ in range(count)]


def number(text: str) -> float:
    """Return the first number of a text in the notation of the screen: `−1.5`, `9.1 × 10⁻⁸`, `−∞`, `1,024`."""
    match = NUMBER.search(text)
    assert match, text
    return _float(match[0])


def numbers(text: str) -> list[float]:
    """Return all numbers of a text."""
    return [_float(match) for match in NUMBER.findall(text)]


def _float(written: str) -> float:
    digits, _, power = written.replace("−", "-").replace(",", "").partition(" × 10")
    return float(digits.replace("∞", "inf")) * 10.0 ** int(power.translate(SUPERSCRIPTS) or 0)


def share(text: str) -> tuple[float, float]:
    """Return the bounds of a share that is written in per cent: `22.1 %`, `< 0.01 %`, `> 99.9 %`."""
    percent = number(text) / 100
    if "<" in text:
        return 0.0, percent
    if ">" in text:
        return percent, 1.0
    digits = len(re.search(r"\d+(?:\.(\d+))?", text)[1] or "")
    half = 0.501 * 10.0 ** (-2 - digits)
    return percent - half, percent + half


def says(text: str, expected: float) -> bool:
    """Return whether a text that ends in a share in per cent states this one."""
    low, high = share(re.search(r"[<>]?\s*[\d.]+\s*%", text)[0])
    return low <= expected <= high


PLOTS = """() => [...document.querySelectorAll(".js-plotly-plot")].map((plot) => plot._fullData.map((one) => {
  const list = (numbers) => (numbers ? [...numbers].map((row) => (row?.length ? [...row] : row)) : null);
  return { kind: one.type, name: one.name, x: list(one.x), y: list(one.y), z: list(one.z) };
}))"""


def plots(page) -> list[list[dict]]:
    """Return the charts of a page, each as its drawing: kind, name, and the numbers `x`, `y` and `z`."""
    return page.evaluate(PLOTS)


def close(shown: float, expected: float, digits: int = 3) -> bool:
    """Return whether a number that is displayed with that many digits is this one."""
    if not np.isfinite(expected) or not np.isfinite(shown):
        return shown == expected or bool(np.isnan(shown) and np.isnan(expected))
    return abs(shown - expected) <= 0.6 * 10.0 ** (1 - digits) * max(abs(shown), abs(expected)) + 1e-12


def unpack(pixels: str) -> np.ndarray:
    """Return the bytes of a canvas `[cells, 4]`, transferred as base64: lists of numbers are slow."""
    return np.frombuffer(b64decode(pixels), np.uint8).reshape(-1, 4).astype(int)


class Picture(NamedTuple):
    """A canvas that was read back: its pixels `[rows, columns, 4]`, the tooltips at points, the colours of the bar
    beside it from one end to the other, the labels of the bar as (text, share of its length), and its text
    alternative."""

    pixels: np.ndarray
    points: list[tuple[int, int]]
    tooltips: list[list[str]]
    stops: np.ndarray | None
    labels: list[tuple[str, float]]
    alt: str | None

    def values(self) -> np.ndarray:
        """Return the value of each cell `[rows, columns]` by the bar: that of its nearest colour."""
        fine = np.linspace(0, len(self.stops) - 1, 1021)
        ramp = np.stack([np.interp(fine, np.arange(len(self.stops)), self.stops[:, i]) for i in range(3)], axis=1)
        codes = self.pixels[..., :3].astype(np.int64) @ (65536, 256, 1)
        known, where = np.unique(codes, return_inverse=True)  # at most as many colours as the scale has
        colours = np.stack([known >> 16, known >> 8 & 255, known & 255], axis=1).astype(float)
        nearest = ((colours[:, None] - ramp[None]) ** 2).sum(-1).argmin(1) / (len(ramp) - 1)
        at, shown = zip(*sorted((at, number(text)) for text, at in self.labels), strict=True)
        return np.interp(nearest, at, shown)[where.ravel()].reshape(self.pixels.shape[:2])


def read(canvas, points, reads: Sequence[str], bar: str = "", ends: str = "", flip: bool = False) -> Picture:
    """Return a picture, read at points (row, column) by pointing at the middle of each cell.

    `reads` are selectors of what is said then; `bar` that of the bar of colours and `ends` that of its labels, near the
    canvas. `flip` is for a bar that goes upwards while its labels count downwards.
    """
    raw: dict[str, Any] = canvas.evaluate(PICTURE, [points, list(reads), bar, ends])
    pixels = unpack(raw["pixels"]).reshape(raw["height"], raw["width"], 4)
    stops = None
    if bar:
        paint = next(one for one in raw["paint"] if "gradient" in one)
        stops = np.array(
            [[float(part) for part in rgb.split(",")[:3]] for rgb in re.findall(r"rgba?\(([^)]*)\)", paint)]
        )
    labels = [(text, float(at.rstrip("%") or 0) / 100) for text, at in raw["labels"]]
    if flip:
        labels = [(text, 1 - at) for text, at in labels]
    return Picture(pixels, points, raw["tooltips"], stops, labels, raw["alt"])


def check_colours(picture: Picture, expected: np.ndarray, tolerance: float = 0.02) -> None:
    """Check that the colour of each cell encodes its value, up to a share of the range, and that cells that are not
    finite are empty."""
    expected = np.asarray(expected, dtype=float)
    assert picture.pixels.shape[:2] == expected.shape
    finite = np.isfinite(expected)
    assert ((picture.pixels[..., 3] > 0) == finite).all(), "a cell is empty"
    ends = [number(text) for text, _ in picture.labels]
    apart = np.abs(picture.values() - np.clip(expected, min(ends), max(ends)))[finite]
    worst = float(apart.max()) / (max(ends) - min(ends) or 1)
    assert worst <= tolerance, f"a colour is {worst:.2f} of the range beside its value"
    slack = 0.01 * np.ptp(ends)
    assert min(ends) - slack <= expected[finite].min() and expected[finite].max() <= max(ends) + slack
