"""Numbers as text: shares, amounts, powers of ten and shapes as every table, caption and figure writes them.

The browser's are in `tracer/figures/film/player/numbers.js`, and round alike.
"""

from __future__ import annotations

from ctypes import c_float
from math import isfinite, isinf, isnan

BLANK = "\N{NO-BREAK SPACE}"
SUPERSCRIPTS = str.maketrans("0123456789-+()ℓ⊤", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺⁽⁾ˡᵀ")


def percent(share: float, places: int | None = None) -> str:
    """Return a share in per cent with as many digits as it needs: `97.3 %`, `0.04 %`, `< 0.01 %`, `> 99.9 %`.

    With `places`, it has so many decimals: `97 %`, `< 1 %`, `> 99 %`. Only what is 0 is `0 %`, and only what is 1 is
    `100 %`. Blanks do not break, so a sign never begins a line.
    """
    digits = places if places is not None else 1 if share >= 0.01 or share == 0 else 2
    step = 10 ** -(digits + 2)
    if 0 < share < step:
        text = f"<{BLANK}{100 * step:g}"
    elif 1 - step / 2 <= share < 1:
        text = f">{BLANK}{100 - 100 * step:g}"
    else:
        text = f"{100 * share:.{digits}f}"
    return f"{text}{BLANK}%"


def scientific(value: float) -> str:
    """Return a number in scientific notation with real superscripts: `2.1e-07` gives `2.1 × 10⁻⁷`, infinity `∞`."""
    if value == 0:
        return "0"
    if isinf(value):
        return "∞" if value > 0 else "-∞"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits} × 10{superscript(int(exponent))}"


def three_digits(value: float) -> str:
    """Return a number with three digits, a tiny or a huge one in scientific notation: `0.0123`, `1.2 × 10⁻⁷`."""
    return scientific(value) if 0 < abs(value) < 1e-3 or abs(value) >= 1e6 else f"{value:.3g}"


def numeral(value: float) -> str:
    """Return a number with a typographic sign and power: `0`, `−∞`, `−10⁹`, `−3.4 × 10³⁸`, `−100`."""
    if isinf(value):
        return "∞" if value > 0 else "−∞"
    size = f"{abs(value):g}" if abs(value) < 1e5 else scientific(abs(value)).removeprefix("1.0 × ")
    return f"−{size}" if value < 0 else size


def four_digits(value: float | complex) -> str:
    """Return a number with four significant digits, such as `0.6387` or `3.178·10⁻⁶`; whole numbers have all."""
    if isinstance(value, complex) or not isfinite(value) or _is_whole(value):
        return all_digits(value)
    text, _, power = f"{value:.4g}".partition("e")
    return signed(text) + (f"·10{superscript(int(power))}" if power else "")


def all_digits(value: float | complex) -> str:
    """Return a number with all the digits that float32 has."""
    if isinstance(value, complex):
        return f"{all_digits(value.real)} + {all_digits(value.imag)} i"
    if not isfinite(value):
        return {"inf": "∞", "-inf": "−∞"}.get(str(float(value)), "NaN")
    if _is_whole(value):
        return signed(str(int(value)))
    single = c_float(value).value
    rounded = (f"{single:.{digits}e}" for digits in range(9))
    text = next(text for text in rounded if c_float(float(text)).value == single)
    return signed(repr(float(text)).removesuffix(".0") if 1e-4 <= abs(value) < 1e7 else text)


def _is_whole(value: float) -> bool:
    return float(value).is_integer() and abs(value) < 1e9


def signed(text: str) -> str:
    """Return a printed number with a typographic minus sign."""
    return text.replace("-", "−")


def superscript(power: int) -> str:
    """Return a whole number in raised digits: `-7` gives `⁻⁷`."""
    return str(power).translate(SUPERSCRIPTS)


def amount(value: float, unit: str = "") -> str:
    """Return a count with an SI prefix: `17.6e9, "FLOP"` gives `17.6 GFLOP`, `812_170` gives `812 k`."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            scaled = value / factor
            return f"{scaled:.{0 if scaled >= 100 else 1 if scaled >= 10 else 2}f} {prefix}{unit}"
    return f"{value:g} {unit}".strip()


def shape_numbers(shape: tuple[int, ...]) -> str:
    """Return a concrete shape as text: `[1, 197, 768]`, or `scalar`."""
    return "scalar" if not shape else "[" + ", ".join(map(str, shape)) + "]"


def latex_number(value: float | complex, digits: int = 4) -> str:
    r"""Return a number as LaTeX, `-1.25 \cdot 10^{-7}`, with that many significant digits; whole numbers have all."""
    if isinstance(value, complex):
        imaginary = latex_number(value.imag, digits)
        sign = "" if imaginary.startswith("-") else "+"
        return rf"{latex_number(value.real, digits)}{sign}{imaginary}\,\mathrm{{i}}"
    if isnan(value):
        return r"\mathrm{NaN}"
    if isinf(value):
        return r"-\infty" if value < 0 else r"\infty"
    if _is_whole(value):
        return str(int(value))
    text, _, power = f"{value:.{digits}g}".partition("e")
    return latex_power(text, power) if power else text


def latex_scientific(value: float) -> str:
    r"""Return a number as LaTeX, to seven digits: `1e-6` gives `10^{-6}`, `3e-6` gives `3 \cdot 10^{-6}`."""
    digits, power = f"{value:.6e}".split("e")
    return latex_power(digits.rstrip("0").removesuffix("."), power)


def latex_power(digits: str, power: str) -> str:
    r"""Return printed digits times a power of ten as LaTeX: `3 \cdot 10^{-6}`, or `10^{-6}` alone."""
    times = f"10^{{{int(power)}}}"
    return times if digits in ("1", "1.0") else rf"{digits} \cdot {times}"


def latex_whole(value: float) -> str:
    """Return a number without decimals as LaTeX, in groups of three digits."""
    return f"{value:,.0f}".replace(",", "{,}")
