"""Quotes of user input for messages: never more than a line of it."""

from os import PathLike
from urllib.error import HTTPError, URLError

MAX_LETTERS = 80
"""Characters that are quoted at most, the quotation marks among them."""


def quote(text: object, most: int = MAX_LETTERS) -> str:
    """Return `repr(given)`, its middle left out where it is longer than `most` characters: `'abc … xyz'`.

    A path is quoted as its text. A long text is cut before its `repr` is computed, so that quoting costs the same for
    any.
    """
    text = str(text) if isinstance(text, PathLike) else text
    if isinstance(text, str) and len(text) > 2 * most:
        text = text[:most] + text[-most:]
    elif isinstance(text, bytes | bytearray) and len(text) > 2 * most:
        text = text[:most] + text[-most:]  # both ends of one kind
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


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, or all of it where that line only begins a sentence; for an
    unreachable host, that it could not be reached."""
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        return f"no connection to the network: {error.reason}"
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return shorten(" ".join(str(error).split()) if first.endswith((":", "(")) else first, 200)


def describe_error(error: Exception) -> str:
    """Return the reason, with the kind of error before it unless it is a ValueError, whose text is a sentence."""
    return reason(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {reason(error)}"
