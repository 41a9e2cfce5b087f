"""Numbers as text, in Python and in the browser."""

import random

import numpy as np
import pytest

from tracer.figures import scripts
from tracer.utils.text import (
    all_digits,
    amount,
    latex_number,
    latex_scientific,
    latex_whole,
    numeral,
    percent,
    round_numeral,
    scientific,
    shape_numbers,
    signed,
    three_digits,
)

RANDOM = random.Random(0)
SHARES = [
    *(0, 1, 0.5, 0.9997, 0.99949, 0.9995, 1 - 1e-9, 1e-9, 0.0001, 0.00009, 0.00995, 0.01, 1.5, 12),
    *(i / 1024 for i in range(2048)),
    *(i / 4000 for i in range(4000)),
    *(1 - 10 ** -RANDOM.uniform(0, 9) for _ in range(500)),
    *(10 ** -RANDOM.uniform(0, 9) for _ in range(500)),
]


def nearly(text: str) -> str:
    return text.replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1, "100.0 %"),
        (0.0042, "0.42 %"),
        (0.00001, "< 0.01 %"),
        (0.9996, "> 99.9 %"),
        (0.9997, "> 99.9 %"),
        (0, "0.0 %"),
        (0.0625, "6.2 %"),
    ],
)
def test_per_cent(share, text):
    assert nearly(percent(share)) == text and " " not in percent(share)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.004, "< 1 %"), (0.97, "97 %"), (0.996, "> 99 %"), (1, "100 %")],
)
def test_whole_per_cent(share, text):
    assert nearly(percent(share, 0)) == text


@pytest.mark.parametrize("places", [None, 0, 1, 2])
def test_only_nothing_is_0_per_cent_and_only_all_is_100(places):
    for share in SHARES:
        text = percent(share, places)
        value = float(text.removesuffix("\u00a0%").lstrip("<>\u00a0"))
        assert ((value == 0) <= (share == 0)) and ((value == 100 and ">" not in text) <= (share >= 1)), (share, text)


@pytest.mark.browser
def test_the_browser_writes_numbers_as_python_does(browser):
    numbers = [sign * 10 ** RANDOM.uniform(-4, 4) for _ in range(500) for sign in (1, -1)]
    numbers += [i / 64 for i in range(-640, 640) if i]
    page = browser.new_page()
    script = f"([shares, numbers]) => {{ {scripts.read('numbers')}; return [shares.map(percent), "
    script += "numbers.map((value) => [0, 1, 2, 3].map((places) => decimals(value, places))), "
    script += "numbers.map((value) => [2, 3, 4].map((digits) => numeral(value, digits)))]; }"
    shares, decimals, numerals = page.evaluate(script, [SHARES, numbers])
    page.close()
    assert shares == [percent(share) for share in SHARES]
    assert decimals == [[signed(f"{value:.{places}f}") for places in range(4)] for value in numbers]
    assert numerals == [[numeral(value, digits) for digits in (2, 3, 4)] for value in numbers]


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.1e-07, "2.1 × 10⁻⁷"), (0, "0"), (12345, "1.2 × 10⁴"), (float("inf"), "∞"), (-float("inf"), "−∞")],
)
def test_small_numbers_have_superscripts(value, text):
    assert scientific(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1.23e-7, "1.2 × 10⁻⁷"), (-2e-4, "-2.0 × 10⁻⁴"), (4e7, "4.0 × 10⁷")],
)
def test_three_digits(value, text):
    assert three_digits(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (-float("inf"), "−∞"), (-1e9, "−10⁹"), (-3.4e38, "−3.4 × 10³⁸"), (-100, "−100")]
)
def test_numerals(value, text):
    assert round_numeral(value) == text


def test_a_power_of_ten_is_raised():
    texts = {3.178e-6: "3.178 × 10⁻⁶", -1.009e-5: "−1.009 × 10⁻⁵", 2.5e12: "2.5 × 10¹²", 12345.0: "12345"}
    assert {value: numeral(value) for value in texts} == texts


def test_all_digits_are_those_of_float32():
    for number in (np.float32(RANDOM.gauss(0, 1) * 10 ** RANDOM.uniform(-12, 5)) for _ in range(2000)):
        positional = 1e-4 <= abs(number) < 1e7
        shortest = np.format_float_positional(number, trim="-") if positional else str(number)
        assert all_digits(float(number)) == shortest.replace("-", "−")
    assert all_digits(0.1) == "0.1" and all_digits(-7.0) == "−7" and all_digits(1e-5) == "1e−05"
    assert all_digits(float("nan")) == "NaN" and all_digits(1 - 2j) == "1 + −2 i"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(17_600_000_000, "FLOP", "17.6 GFLOP"), (1_210_000, "", "1.21 M"), (812_170, "", "812 k"), (64, "", "64")],
)
def test_amounts_have_units(value, unit, text):
    assert amount(value, unit) == text


def test_shapes():
    assert shape_numbers((1, 197, 768)) == "[1, 197, 768]" and shape_numbers(()) == "scalar"


def test_numbers_as_latex():
    assert latex_number(-1.25e-7) == r"-1.25 \cdot 10^{-7}" and latex_number(1e-6) == "10^{-6}"
    assert latex_number(1 - 2j) == r"1-2\,\mathrm{i}" and latex_number(-float("inf")) == r"-\infty"
    assert latex_scientific(3e-6) == r"3 \cdot 10^{-6}" and latex_scientific(0.001) == "10^{-3}"
    assert latex_whole(1234567) == "1{,}234{,}567"
