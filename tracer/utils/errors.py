"""How a user's mistake is told: quotes, bounds of what is accepted, and packages that are not installed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib import import_module
from math import inf
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError

Result = TypeVar("Result")


# Quotes of user input for messages: never more than a line of it.

MAX_LETTERS = 80
"""Characters that are quoted at most, the quotation marks among them."""


def quote(text: object, most: int = MAX_LETTERS) -> str:
    """Return `repr(given)`, its middle left out where it is longer than `most` characters: `'abc … xyz'`.

    A path is quoted as its text. A long text is cut before its `repr` is computed, so that quoting costs the same for
    any.
    """
    text = str(text) if isinstance(text, PathLike) else text
    if isinstance(text, str | bytes | bytearray) and len(text) > 2 * most:
        text = text[:most] + text[-most:]  # type: ignore[operator] # both ends of one kind
    return shorten(repr(text), most)


def shorten(text: str, most: int = MAX_LETTERS) -> str:
    """Return a text of any length as one line of at most `most` characters; the part left out in the middle is `…`."""
    text = text if len(text) <= 4 * most else text[: 2 * most] + text[-2 * most :]
    text = " ".join(text.split()) if "\n" in text else text
    head = 2 * (most - 3) // 3
    return text if len(text) <= most else f"{text[:head]} … {text[head + 3 - most :]}"


def quoted_setting(name: str, value: object) -> str:
    """Return the input of a size or an option, `T='many'`, for a sentence that refuses it."""
    return shorten(f"{name}={quote(value)}")


def capitalize(message: str) -> str:
    """Return an error message with an initial capital letter, unless it begins with code, such as `hide(3,grey)`."""
    first = re.split(r"[\s,;]", message, maxsplit=1)[0]
    return f"{message[:1].upper()}{message[1:]}" if first.isalpha() else message


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, or all of it where that line only begins a sentence; for an
    unreachable host, that it could not be reached."""
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        return f"no connection to the network: {error.reason}"
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return shorten(" ".join(str(error).split()) if first.endswith((":", "(")) else first, 200)


def result_or_reason(make: Callable[[], Result]) -> Result | str:
    """Return `make()`, or the message of its `ValueError`."""
    try:
        return make()
    except ValueError as error:
        return str(error)


def describe_error(error: Exception) -> str:
    """Return the reason, with the kind of error before it unless it is a ValueError, whose text is a sentence."""
    return reason(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {reason(error)}"


# Limits of a server, for one visitor and for all of them together: their defaults, and the variables that set them.
#
# On one's own machine the bounds are wide. With `TRACER_HOSTED=1` they are those of a server that strangers reach: our
# own models only, nothing downloaded, smaller texts and files, logs that hold nothing of what was given. The code is
# the same, only the numbers differ. `TRACER_` and the name of a bound in capitals sets that bound alone.


def _bound(own: float, hosted: float) -> Any:
    """Return the field of a bound: on one's own machine, and hosted."""
    return field(metadata={"bounds": (own, hosted)})


@dataclass(frozen=True)
class Limits:
    """Limits of this server; `more` names the models that are offered besides ours, None means any."""

    hosted: bool
    more: tuple[str, ...] | None
    hosts: tuple[str, ...]  # names under which this server is reached besides localhost
    framed_by: tuple[str, ...]  # sites that may show its pages in a frame of theirs
    run_process: bool  # whether models may run in a process beside the server's, once visitors wait for each other
    prewarm: str  # what the server computes before anybody asks: "all" samples and checks, or the "first" run alone
    text: int = _bound(20_000, 2_000)  # characters of a visitor's text
    tokens: float = _bound(inf, 512)  # tokens of a visitor's text, as its model counts them
    photo_mb: float = _bound(10, 10)  # megabytes of a photo's file; `tracer.inputs.images` bounds its pixels
    upload_mb: int = _bound(200, 25)  # megabytes of a saved run or a survey, and of all files of a visitor that wait
    uploads_mb: int = _bound(2_000, 500)  # megabytes of all files that arrive or wait to be read; half for one address
    visitors: int = _bound(500, 100)  # open pages at once, of all visitors together
    address_visitors: int = _bound(400, 60)  # open pages at once from one address, which a class may share
    visitor_runs: int = _bound(8, 3)  # runs of one visitor that go on or wait at once
    address_runs: int = _bound(200, 30)  # runs from one address that go on or wait at once
    runs: int = _bound(200, 40)  # runs of all visitors that go on or wait at once
    model_gb: float = _bound(8, 1)  # gigabytes of float32 weights of one model
    memory_gb: float = _bound(inf, 3)  # gigabytes of the server's process from which on no run and no file is taken

    def models(self, ours: Sequence[str]) -> tuple[str, ...] | None:
        """Return the models that are offered, `ours` first; None where any is."""
        return None if self.more is None else tuple(dict.fromkeys((*ours, *self.more)))

    def check_model(self, name: str, ours: Sequence[str] = ()) -> None:
        """Raise ValueError in one sentence for a model that is not on this server."""
        offered = self.models(ours)
        if offered is not None and name not in offered:
            raise ValueError(f"{quote(name)} is not on this server; expected one of {', '.join(offered) or 'its own'}")

    def check_text(self, text: str) -> None:
        """Raise ValueError in one sentence for a text that is too long."""
        if len(text) > self.text:
            raise ValueError(f"Your text has {len(text):,} characters; this server takes {self.text:,} at most")

    def check_tokens(self, count: int) -> None:
        """Raise ValueError in one sentence for a text of too many tokens."""
        if count > self.tokens:
            raise ValueError(f"it has {count:,} tokens, and this server takes {self.tokens:,} at most")

    def check_file(self, size: int, saved_run: bool) -> None:
        """Raise ValueError in one sentence for a file of that many bytes that exceeds the bound of its kind."""
        what, most = ("saved runs", self.upload_mb) if saved_run else ("photos", self.photo_mb)
        if size > most * 2**20:
            raise ValueError(f"This file has {size:,} bytes; this server takes {what} of {most:g} MB at most")

    def memory_full(self) -> str:
        """Return one sentence while the server's memory is full, else ""."""
        if self.memory_gb == inf or (used := memory() / 2**30) <= self.memory_gb:
            return ""
        return f"The server’s memory is full, {used:.1f} of {self.memory_gb:g} GB: try again in a few minutes."


BOUNDS = {bound.name: bound.metadata["bounds"] for bound in fields(Limits) if bound.metadata}
VARIABLES = (
    "TRACER_HOSTED",
    "TRACER_MODELS",
    "TRACER_HOST",
    "TRACER_FRAMED_BY",
    "TRACER_PREWARM",
    "TRACER_RUN_PROCESS",
    *(f"TRACER_{name.upper()}" for name in BOUNDS),
)


def limits() -> Limits:
    """Return the current bounds. Raise ValueError in one sentence for an unreadable variable."""
    return _read(tuple(os.environ.get(name, "").strip() for name in VARIABLES))


@lru_cache(maxsize=8)
def _read(stated: tuple[str, ...]) -> Limits:
    """Read the limits once, and again only where the environment changed, as it does in tests."""
    settings = dict(zip(VARIABLES, stated, strict=True))
    for switch in ("TRACER_HOSTED", "TRACER_RUN_PROCESS"):
        if settings[switch] not in ("", "0", "1"):
            raise ValueError(f"{switch}={quote(settings[switch])} was given, expected 1 or 0")
    hosted, more = settings["TRACER_HOSTED"] == "1", settings["TRACER_MODELS"].replace(",", " ").split()
    bounds: dict[str, Any]
    bounds = {name: _read_bound(f"TRACER_{name.upper()}", settings, pair[hosted]) for name, pair in BOUNDS.items()}
    hosts, sites = (
        tuple(settings[name].lower().replace(",", " ").split()) for name in ("TRACER_HOST", "TRACER_FRAMED_BY")
    )
    for site in sites:
        if not re.fullmatch(r"https://[\w.-]+(:\d+)?", site):
            raise ValueError(
                f"TRACER_FRAMED_BY={quote(site)} was given, expected a site such as https://school.example"
            )
    prewarm = settings["TRACER_PREWARM"] or "all"
    if prewarm not in ("all", "first"):
        raise ValueError(f"TRACER_PREWARM={quote(prewarm)} was given, expected all or first")
    return Limits(
        hosted=hosted,
        more=tuple(more) if hosted or more else None,
        hosts=hosts,
        framed_by=sites,
        run_process=settings["TRACER_RUN_PROCESS"] != "0" if not hosted else settings["TRACER_RUN_PROCESS"] == "1",
        prewarm=prewarm,
        **bounds,
    )


def _read_bound(variable: str, settings: dict[str, str], default: float) -> float:
    text = settings[variable]
    if not text:
        return default
    whole = variable not in ("TRACER_PHOTO_MB", "TRACER_MODEL_GB", "TRACER_MEMORY_GB")
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        value = 0
    if not value > 0:
        raise ValueError(f"{variable}={quote(text)} was given, expected a {'whole ' * whole}number above 0")
    return value


def memory() -> int:
    """Return the bytes of memory that this process holds now; 0 where the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


# Packages that only some features need, each with the extra of `pyproject.toml` that installs it.

EXTRAS = {
    "onnx": "train",
    "onnxruntime": "train",
    "pandas": "tables",
    "plotly": "figures",
    "pyarrow": "survey",
    "ray": "survey-ray",
    "streamlit": "app",
    "tokenizers": "lessons",
    "tqdm": "train",
}
"""Package to extra. The extra `app` has all of these but ray and those of `train`, too."""


def require(package: str, feature: str) -> ModuleType:
    """Import a package of `EXTRAS`. Raise ModuleNotFoundError with one sentence on how to install it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ModuleNotFoundError(sentence(package, feature), name=package) from None


def explain(error: ModuleNotFoundError, feature: str) -> str:
    """Return the sentence for an import that failed, "" where the package belongs to no extra."""
    package = (error.name or "").partition(".")[0]
    return sentence(package, feature) if package in EXTRAS else ""


def sentence(package: str, feature: str) -> str:
    """Return the sentence on what a feature needs and how to install it."""
    return f"{feature} needs {package}, which is not installed: pip install 'tensor-tracer[{EXTRAS[package]}]'"
